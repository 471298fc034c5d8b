"""Any server that speaks OpenAI's chat completions, over HTTP and by the standard library alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from ..errors import DFlashError, UsageError
from .sample import Asked, Sample

TIMEOUT = 600.0
"""Seconds in which a server must say something."""


def parse_server(text: str) -> tuple[str, str]:
    """`NAME=URL` or a bare URL, as a name and a URL. Raises UsageError where it is neither."""
    name, equals, url = text.partition("=")
    if not equals or "://" in name:
        name, url = text, text
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        known = False
    if not known:
        raise UsageError(
            f"--base-url takes a URL such as http://127.0.0.1:8080/v1; it was {text!r}."
        )
    return name, url.rstrip("/")


class ServerArm:
    """A server. Its tokens are not known, only their number, so answers are not compared."""

    same_rule = False
    samples = True

    def __init__(self, name: str, url: str, model: str | None = None) -> None:
        self.name = name
        self._url = urlsplit(url)
        self.model = model or self._first_model()
        self.counts_chunks = False

    def answer(self, asked: Asked) -> Sample:
        """Answer once. Raises DFlashError where the server does not."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": asked.text}],
            "max_tokens": asked.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": asked.seed,
        }
        if asked.sampling is not None:
            body |= {"temperature": asked.sampling.temperature, "top_p": asked.sampling.top_p}
        begin = time.perf_counter()
        pieces, times, usage = list[str](), list[float](), dict[str, int]()
        for piece, counts in self._stream(body):
            usage = counts or usage
            if piece:
                pieces.append(piece)
                times.append(time.perf_counter())
        if not times:
            raise DFlashError(f"{self.name} gave an empty answer: try it with another model.")
        self.counts_chunks = "completion_tokens" not in usage
        return Sample(
            "".join(pieces),
            usage.get("prompt_tokens", 0),
            usage.get("completion_tokens", len(pieces)),
            times[0] - begin,
            times[-1] - times[0],
        )

    def close(self) -> None:
        """Nothing: each answer has a connection of its own."""

    def _first_model(self) -> str:
        """The first model that the server lists."""
        with self._open("GET", "/models") as response:
            try:
                return str(json.load(response)["data"][0]["id"])
            except (OSError, HTTPException, ValueError, LookupError, TypeError):
                raise DFlashError(
                    f"{self.name} does not list its models: name one as --model."
                ) from None

    def _stream(self, body: dict[str, Any]) -> Iterator[tuple[str, dict[str, int]]]:
        """The text and the counts of tokens of each of the answer's server-sent events."""
        with self._open("POST", "/chat/completions", body) as response:
            try:
                for line in response:
                    data = line.decode().strip().removeprefix("data:").strip()
                    if line.startswith(b"data:") and data != "[DONE]":
                        chunk = json.loads(data)
                        usage = (chunk.get("usage") or {}).items()
                        yield _said(chunk), {k: v for k, v in usage if isinstance(v, int)}
            except (OSError, HTTPException, ValueError) as error:
                raise DFlashError(f"{self.name} broke off its answer ({error}).") from error
            except (AttributeError, LookupError, TypeError):
                raise DFlashError(
                    f"{self.name} does not speak OpenAI's protocol: it sent {data[:80]}."
                ) from None

    def _open(self, method: str, path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
        """A response that is no error; closing it closes its connection."""
        make = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        connection = make(self._url.hostname or "", self._url.port, timeout=TIMEOUT)
        text = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        try:
            connection.request(method, self._url.path + path, text, headers)
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            raise DFlashError(
                f"Nothing answers at {self._url.geturl()} ({error}): start the server, or mend"
                " --base-url."
            ) from error
        if response.status != 200:
            words = response.read().decode(errors="replace").strip()[:200]
            connection.close()
            raise DFlashError(f"{self.name} refused {path}: {response.status} {words}.")
        return response


def _said(chunk: dict[str, Any]) -> str:
    """The text of a chunk, reasoning too."""
    choices = chunk.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return "".join(delta.get(key) or "" for key in ("reasoning_content", "reasoning", "content"))
