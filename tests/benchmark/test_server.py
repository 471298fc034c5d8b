"""A server of OpenAI's protocol: asked by HTTP, streamed, timed, and its refusals told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dflash_mlx.benchmark.sample import Asked
from dflash_mlx.benchmark.server import ServerArm, parse_server
from dflash_mlx.engine.options import Sampling
from dflash_mlx.errors import DFlashError, UsageError

WORDS = ["The", " sky", " is", " blue"]
PAUSE = 0.02


class FakeServer(ThreadingHTTPServer):
    """Streams `WORDS`; `usage` says whether it counts tokens, `status` what it replies."""

    usage = True
    status = 200
    pieces: list[str] = WORDS
    garbage: object = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        self._reply(json.dumps({"data": [{"id": "served"}]}).encode())

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.requests.append(json.loads(self.rfile.read(length)))
        if self.server.status != 200:
            self._reply(b"no such model")
            return
        self.send_response(200)
        self.end_headers()
        self._event({"choices": [{"delta": {"role": "assistant"}}]})
        if self.server.garbage is not None:
            self._event(self.server.garbage)
        for word in self.server.pieces:
            time.sleep(PAUSE)
            self._event({"choices": [{"delta": {"content": word}}]})
        if self.server.usage:
            self._event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 6}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: object) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def _reply(self, body: bytes) -> None:
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def serving() -> Iterator[FakeServer]:
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving() as running:
        yield running


def asked(sampling: Sampling | None = None) -> Asked:
    return Asked("Why?", [], sampling, 12, 3)


def test_an_answer_is_streamed_counted_and_timed(server: FakeServer) -> None:
    sample = ServerArm("served", server.url).answer(asked())
    assert sample.text == "The sky is blue"
    assert (sample.prompt_tokens, sample.generated, sample.tokens) == (9, 6, None)
    assert sample.prefill_seconds >= PAUSE
    assert sample.decode_seconds >= 3 * PAUSE
    [request] = server.requests
    assert (request["model"], request["max_tokens"], request["stream"]) == ("served", 12, True)
    assert request["messages"] == [{"role": "user", "content": "Why?"}]
    assert "temperature" not in request, "its own sampling is the server's business"


def test_greedy_is_asked_for_by_a_temperature_of_zero(server: FakeServer) -> None:
    ServerArm("served", server.url, "named").answer(asked(Sampling()))
    assert server.requests[0]["temperature"] == 0
    assert server.requests[0]["model"] == "named"


def test_without_usage_chunks_are_counted_and_that_is_known(server: FakeServer) -> None:
    server.usage = False
    arm = ServerArm("served", server.url)
    assert arm.answer(asked()).generated == 4
    assert arm.counts_chunks


def test_what_a_server_refuses_is_told_in_its_words(server: FakeServer) -> None:
    arm = ServerArm("served", server.url)
    server.status = 404
    with pytest.raises(DFlashError, match="served refused /chat/completions: 404 no such model"):
        arm.answer(asked())


def test_an_empty_answer_is_an_error(server: FakeServer) -> None:
    arm = ServerArm("served", server.url)
    server.pieces = []
    with pytest.raises(DFlashError, match="empty answer"):
        arm.answer(asked())


@pytest.mark.parametrize(
    "garbage", [[1], "words", {"choices": [7]}, {"choices": [{"delta": {"content": 7}}]}]
)
def test_what_is_no_answer_is_told_and_no_traceback(server: FakeServer, garbage: object) -> None:
    arm = ServerArm("served", server.url)
    server.garbage = garbage
    with pytest.raises(DFlashError, match="served does not speak OpenAI's protocol: it sent"):
        arm.answer(asked())


def test_counts_that_are_null_are_no_counts(server: FakeServer) -> None:
    arm = ServerArm("served", server.url)
    server.garbage, server.usage = {"usage": {"completion_tokens": None}}, False
    assert arm.answer(asked()).generated == len(WORDS)
    assert arm.counts_chunks


def test_where_nothing_answers_the_sentence_says_what_to_do() -> None:
    with serving() as gone:
        url = gone.url
    with pytest.raises(DFlashError, match=r"Nothing answers at .*start the server"):
        ServerArm("gone", url)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("http://127.0.0.1:80/v1/", ("http://127.0.0.1:80/v1/", "http://127.0.0.1:80/v1")),
        ("a=https://x.test/v1", ("a", "https://x.test/v1")),
        ("http://x.test/v1?a=b", ("http://x.test/v1?a=b", "http://x.test/v1?a=b")),
    ],
)
def test_a_server_is_a_url_with_or_without_a_name(text: str, parsed: tuple[str, str]) -> None:
    assert parse_server(text) == parsed


@pytest.mark.parametrize("text", ["localhost:8080", "http://x:port/v1", "http://[::1"])
def test_what_is_no_url_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--base-url takes a URL"):
        parse_server(text)
