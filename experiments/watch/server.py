"""The page and its events over HTTP, for this machine and whoever knows the address."""

from __future__ import annotations

import json
import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from experiments.plan.folder import run_name
from experiments.watch.page import SCRIPT, page
from experiments.watch.state import Watcher
from fedsim.errors import FedsimError

LOOPBACK = "127.0.0.1"
_SHARE = 9.0
"""Seconds of rest for each second of reading and drawing: what is watched should not wait."""
_PAUSE, _LONGEST = 1.0, 30.0
_LISTENERS = 8
"""Pages that are followed at once."""
_SILENCE = 15.0
"""Seconds after which a page that heard nothing is written to, lest a closed one stays."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_FRAMES = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; connect-src 'self'; "
    f"script-src 'sha256-{b64encode(sha256(SCRIPT.encode()).digest()).decode()}'; {_FRAMES}"
)


class Feed:
    """The page, drawn anew while somebody follows it.

    Attributes:
        page: as it was drawn last.
        ended: whether the report has taken its place.
        listeners: pages that are followed.
    """

    def __init__(self, watcher: Watcher) -> None:
        self.watcher, self.ended, self.page, self.listeners = watcher, False, "", 0
        self._changed, self._stop = threading.Condition(), threading.Event()
        self.refresh()

    def refresh(self) -> None:
        """Read the run and draw what is there."""
        drawn, ended = self.page, self.watcher.ended()
        if not ended:
            with suppress(FedsimError, OSError):  # half-written, and whole the next time
                drawn = page(run_name(self.watcher.run.root), self.watcher.state())
        with self._changed:
            self.page, self.ended = drawn, ended
            self._changed.notify_all()

    def follow(self) -> None:
        """Refresh until ``close``, in a thread of its own."""
        rest = _PAUSE
        while not self._stop.wait(rest):
            started = time.monotonic()
            if self.listeners:
                self.refresh()
            rest = min(_LONGEST, max(_PAUSE, _SHARE * (time.monotonic() - started)))

    def close(self) -> None:
        """End ``follow`` and every stream."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()

    def stream(self, send: Callable[[bytes], object]) -> None:
        """Send each change as an event until the report is there."""
        known = ""
        while not self._stop.is_set() and not self.ended:
            news = f"data: {json.dumps(self.page)}\n\n" if self.page != known else ":\n\n"
            send(news.encode())
            known = self.page
            with self._changed:
                self._changed.wait(_SILENCE)
        if self.ended:
            send(b"event: end\ndata:\n\n")


class Server(ThreadingHTTPServer):
    """Listens on loopback; the address holds a secret, since others may use this machine."""

    daemon_threads = True

    def __init__(self, feed: Feed, port: int = 0) -> None:
        super().__init__((LOOPBACK, port), Handler)
        self.feed, self.secret = feed, secrets.token_urlsafe(16)
        self.hosts = {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    @property
    def url(self) -> str:
        """The address to open."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.secret}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that goes away is no fault."""


class Handler(BaseHTTPRequestHandler):
    """GET of the page and of its events, and nothing else."""

    server: Server
    server_version, sys_version = "fedsim", ""
    timeout = 20

    def do_GET(self) -> None:
        """Answer one request."""
        feed, root = self.server.feed, f"/{self.server.secret}/"
        if self.headers.get("Host") not in self.server.hosts:  # a page elsewhere that rebinds DNS
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif secrets.compare_digest(self.path.encode(), root.encode()):
            if feed.watcher.ended():
                self._answer(feed.watcher.page.read_bytes(), _FRAMES)  # its own policy is inside
            else:
                if feed.ended or not feed.page:  # a run that had ended goes on
                    feed.refresh()
                self._answer(feed.page.encode(), POLICY)
        elif secrets.compare_digest(self.path.encode(), f"{root}events".encode()):
            self._stream()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, body: bytes, policy: str) -> None:
        self._head("text/html; charset=utf-8", policy)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        feed = self.server.feed
        if feed.listeners >= _LISTENERS:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        feed.listeners += 1
        try:
            self._head("text/event-stream", POLICY)
            self.end_headers()
            feed.stream(self.wfile.write)
        finally:
            feed.listeners -= 1

    def _head(self, kind: str, policy: str) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in {
            "Content-Type": kind,
            "Content-Security-Policy": policy,
            **_HEADERS,
        }.items():
            self.send_header(name, value)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the address holds the secret."""
