"""A hub on this machine, as far as `snapshot_download` asks: revision, file list, files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub.constants
import pytest

COMMIT = "c" * 40


@dataclass
class FakeHub:
    """`files` by repository; `refusals` answer a repository with (status, error code).

    `requests` lists what was asked; `broken` names files that fail; `ranges` lists what parts of
    a file were asked for. A file in `cuts` breaks off once, after that many bytes; one in `stalls`
    stops there and the connection hangs until the hub closes.
    """

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    ranges: list[str] = field(default_factory=list)
    cuts: dict[str, int] = field(default_factory=dict)
    stalls: dict[str, int] = field(default_factory=dict)
    closing: threading.Event = field(default_factory=threading.Event)

    def fetched(self) -> set[str]:
        """Names of the files whose content was asked for."""
        gets = (request for request in self.requests if request.startswith("GET"))
        return {request.rsplit("/", 1)[-1] for request in gets if "/resolve/" in request}


@contextmanager
def serve() -> Iterator[FakeHub]:
    """Run a hub until the block is left."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.hub
    finally:
        server.hub.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def point_client_at(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub's client of this process ask `hub`, and keep what it gets in `cache`."""
    constants = huggingface_hub.constants
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


class _Server(ThreadingHTTPServer):
    def __init__(self, *arguments: Any) -> None:
        self.hub = FakeHub()
        super().__init__(*arguments)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        hub, path = self.server.hub, urlsplit(self.path).path
        hub.requests.append(f"{self.command} {path}")
        repository = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        files = hub.files.get(repository)
        if repository in hub.refusals:
            status, code = hub.refusals[repository]
            self.reply(status, b"{}", {"X-Error-Code": code})
        elif files is None:
            self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif "/tree/" in path:
            self.reply(200, json.dumps(listing(files)).encode())
        elif "/resolve/" in path:
            self.file(path.split("/resolve/")[1].split("/", 1)[1], files)
        else:
            info = {"id": repository, "sha": COMMIT, "siblings": [], "tags": []}
            self.reply(200, json.dumps(info).encode())

    do_HEAD = do_GET

    def file(self, name: str, files: dict[str, bytes]) -> None:
        hub, content = self.server.hub, files[name]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag(name, content)}"'}
        if self.command == "GET" and name in hub.broken:
            self.reply(500, b"", headers)
        elif self.command == "GET" and "Range" in self.headers:
            hub.ranges.append(self.headers["Range"])
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            size = len(content)
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
            self.reply(206, content[start:], headers)
        elif self.command == "GET" and name in hub.cuts:
            self.reply(200, content, headers, hub.cuts.pop(name))
        elif self.command == "GET" and name in hub.stalls:
            self.reply(200, content, headers, hub.stalls.pop(name))
            hub.closing.wait(30)
        else:
            self.reply(200, content, headers)

    def reply(
        self,
        status: int,
        content: bytes,
        headers: Mapping[str, str] | None = None,
        sent: int | None = None,
    ) -> None:
        """Answer; where `sent` is given, with only so many bytes of the content."""
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:sent])
            self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        pass


def listing(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [
        {"type": "file", "path": name, "size": len(content), "oid": digest(content), **lfs}
        for name, content in files.items()
        for lfs in [{"lfs": large(content)} if name.endswith(".safetensors") else {}]
    ]


def large(content: bytes) -> dict[str, Any]:
    return {"oid": sha256(content), "size": len(content), "pointerSize": 130}


def etag(name: str, content: bytes) -> str:
    """What names a file's content: SHA-256 for weights, as for all large files of the hub."""
    return sha256(content) if name.endswith(".safetensors") else digest(content)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
