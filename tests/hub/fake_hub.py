"""A hub on this machine, as far as `snapshot_download` asks: revision, file list, files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

COMMIT = "c" * 40


@dataclass
class FakeHub:
    """`files` by repository; `refusals` answer a repository with (status, error code).

    `requests` lists what was asked; `broken` names files that fail.
    """

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

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
        server.shutdown()
        server.server_close()
        thread.join()


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
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest(files[name])}"'}
        if self.command == "GET" and name in self.server.hub.broken:
            self.reply(500, b"", headers)
        else:
            self.reply(200, files[name], headers)

    def reply(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def listing(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [
        {"type": "file", "path": name, "size": len(content), "oid": digest(content)}
        for name, content in files.items()
    ]


def digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
