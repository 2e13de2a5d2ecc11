"""`assay report RUN --live`: the page of a run that goes on, served to this machine alone.

It listens on 127.0.0.1, answers only GET and HEAD, and only where the Host header names this machine: a page on the web
cannot read it through a name that it points at 127.0.0.1.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from assay.machine.user_error import UserError
from assay.report.opened import open_path
from assay.report.page import page_of, version_of

ADDRESS = "127.0.0.1"
PATIENCE = 10.0  # a page is made again at most when ten times as long has passed as it takes


class LiveError(UserError, OSError):
    """The page cannot be served. The message is one sentence with the fix."""


@dataclass
class LivePage:
    """The newest page of a run, made when somebody asks for it and the record has grown."""

    path: Path
    make: Callable[[Path], tuple[str, str]]  # -> page and its version
    page: str = ""
    version: str = ""
    _seen: tuple[tuple[int, int], ...] = ()
    _made_at: float = 0.0
    _took: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def refresh(self) -> None:
        with self._lock:
            now = time.monotonic()
            state = self._state()
            if self.page and (state == self._seen or now - self._made_at < PATIENCE * self._took):
                return
            self.page, self.version = self.make(self.path)
            self._seen, self._made_at, self._took = state, time.monotonic(), time.monotonic() - now

    def _state(self) -> tuple[tuple[int, int], ...]:
        """Size and time of the files that grow."""
        names = ("metrics.jsonl", "events.jsonl", "evaluations.jsonl", "findings.jsonl")
        files = [self.path / name for name in names] if self.path.is_dir() else [self.path]
        found = [file.stat() for file in files if file.is_file()]
        return tuple((status.st_size, status.st_mtime_ns) for status in found)


def make_live_page(path: Path, tokenizer: Path | None = None) -> tuple[str, str]:
    run = open_path(path)
    return page_of(run, tokenizer=tokenizer, live=True), version_of(run)


def server_of(live: LivePage, port: int) -> ThreadingHTTPServer:
    """Bound, and not yet serving."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "assay", ""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is written for each request."""

        def _answer(self, with_body: bool) -> None:
            allowed = {f"{name}:{self.server.server_port}" for name in (ADDRESS, "localhost")}  # type: ignore[attr-defined]
            if self.headers.get("Host") not in allowed:
                return self._send(403, "text/plain", "this page is served to this machine alone", with_body)
            try:
                live.refresh()
            except UserError as error:
                return self._send(503, "text/plain", str(error), with_body)
            found = {"/": ("text/html", live.page), "/version": ("text/plain", live.version)}
            kind, text = found.get(self.path, ("", ""))
            if not kind:
                return self._send(404, "text/plain", "there is one page here: /", with_body)
            return self._send(200, kind, text, with_body)

        def _send(self, status: int, kind: str, text: str, with_body: bool) -> None:
            body = text.encode("utf-8", "backslashreplace")
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    try:
        return ThreadingHTTPServer((ADDRESS, port), Handler)
    except OSError as error:
        raise LiveError(
            f"port {port} cannot be used: {error.strerror}; choose another with --port, or 0 for any"
        ) from error
