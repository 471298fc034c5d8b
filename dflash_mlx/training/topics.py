"""Questions to begin conversations with, made of templates: a model's own are narrow."""

from __future__ import annotations

import random

TOPICS = (
    "gardening", "the French Revolution", "bicycles", "photosynthesis", "black holes", "jazz",
    "home cooking", "the stock market", "dinosaurs", "chess", "volcanoes", "public speaking",
    "the human heart", "electric cars", "ancient Egypt", "time management", "coral reefs",
    "learning a language", "the water cycle", "video games", "marathon training", "coffee",
    "climate change", "poetry", "bees", "the Moon landing", "budgeting", "architecture",
    "vaccines", "camping", "the Roman Empire", "sleep", "photography", "databases", "football",
    "migration of birds", "job interviews", "bread", "the internet", "mountains", "painting",
    "antibiotics", "sailing", "friendship", "plate tectonics", "robots", "tea", "elections",
    "the violin", "recycling",
)  # fmt: skip

PLACES = ("Lisbon", "Kyoto", "a small village", "Nairobi", "the coast", "a big city", "Iceland")

PEOPLE = (
    "a beginner", "a child of ten", "a busy parent", "an engineer", "a new manager", "a student",
    "my grandmother", "a tourist", "a small shop",
)  # fmt: skip

LANGUAGES = ("Python", "JavaScript", "C", "SQL", "Java", "Rust")

FUNCTIONS = (
    "reverses a string", "finds the largest number in a list", "counts the words of a text",
    "checks whether a number is prime", "merges two sorted lists", "computes a factorial",
    "removes duplicates from a list", "reads a CSV file", "sorts records by date",
    "checks whether a text is a palindrome", "converts Celsius to Fahrenheit",
    "finds the most frequent word",
)  # fmt: skip

TEXTS = (
    "hey, cant make it to the meeting tmrw, sorry",
    "The results was very good and we are happy about them all.",
    "Our shop sells many thing. You can buy it online or in the shop.",
    "I want to complain because my parcel is late since two weeks.",
    "The experiment, it did not work, because the temperature was too high.",
)

TEMPLATES = (
    "What is {topic}?",
    "Explain {topic} to {person}.",
    "Give me five tips about {topic}.",
    "Write a short story about {topic} and {other}.",
    "List the advantages and disadvantages of {topic}.",
    "Why does {topic} matter to {person}?",
    "How did {topic} change over the last hundred years?",
    "Write a poem about {topic}.",
    "Compare {topic} with {other}.",
    "Write a letter to {person} about {topic}.",
    "Plan three days in {place} for somebody who loves {topic}.",
    "What are common mistakes in {topic}, and how can {person} avoid them?",
    "Make a quiz of four questions about {topic}, with answers.",
    "Summarize what is known about {topic} in three sentences.",
    "Write a {language} function that {function}.",
    "Explain how a {language} program that {function} works, step by step.",
    "What is {a} plus {b}?",
    "What is {a} times {c}?",
    "{name} has {a} apples and gives away {c}. How many are left? Show your work.",
    "A train travels {a} miles in {c} hours. What is its speed?",
    "Rewrite this politely: {text}",
    "Correct the mistakes in this sentence: {text}",
    "Translate into simpler English: {text}",
    "Write an email to {person} to ask for help with {topic}.",
    "Give me a table of three facts about {topic} and three about {other}.",
    "Suggest names for a company in {place} that deals with {topic}.",
    "Write a dialogue between two friends about {topic}.",
    "What should {person} know before starting with {topic}?",
    "Describe {place} in winter.",
    "Write a recipe for {person} who has ten minutes.",
)

NAMES = ("Anna", "Tom", "Mei", "Omar", "Lucia", "Ben")


def questions(count: int, seed: int) -> list[str]:
    """`count` different questions, the same for a seed; fewer if the templates give out."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    for _ in range(20 * count):
        if len(found) == count:
            break
        found[_question(rng)] = None
    return list(found)


def _question(rng: random.Random) -> str:
    topic, other = rng.sample(TOPICS, 2)
    return rng.choice(TEMPLATES).format(
        topic=topic,
        other=other,
        place=rng.choice(PLACES),
        person=rng.choice(PEOPLE),
        language=rng.choice(LANGUAGES),
        function=rng.choice(FUNCTIONS),
        text=rng.choice(TEXTS),
        name=rng.choice(NAMES),
        a=rng.randint(12, 99),
        b=rng.randint(12, 99),
        c=rng.randint(2, 11),
    )
