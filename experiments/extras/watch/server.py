"""The page and its events over HTTP, for this machine and whoever knows the address."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, BinaryIO

from experiments.extras.watch.state import CellState, CurveKey, State, Watcher
from fedsim.api import Run
from fedsim.api.calls import (
    FEW,
    INK,
    Figure,
    defense_name,
    frame_decibels,
    frame_shares,
    panel,
    render,
    show,
    show_page,
    spoken,
    strokes,
    title,
    unit_of,
)
from fedsim.errors import ConfigError, FedsimError
from fedsim.records import PRIOR_ONLY, shown
from fedsim.visible import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SCRIPT = files("experiments.extras.watch").joinpath("watch.js").read_text("utf-8")
"""The one script of the page, whose policy is inside it."""
LOOPBACK = "127.0.0.1"
_SHARE = 9.0
"""Seconds of rest for each second of reading and drawing: what is watched should not wait."""
_PAUSE, _LONGEST = 1.0, 30.0
_LISTENERS = 8
"""Pages that are followed at once."""
_SILENCE = 15.0
"""Seconds after which a page that heard nothing is written to, lest a closed one stays."""
_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


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
                drawn = page(self.watcher.run.name, self.watcher.state())
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
                self._answer(feed.watcher.run.page.read_bytes())
            else:
                if feed.ended or not feed.page:  # a run that had ended goes on
                    feed.refresh()
                self._answer(feed.page.encode())
        elif secrets.compare_digest(self.path.encode(), f"{root}events".encode()):
            self._stream()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, body: bytes) -> None:
        self._head("text/html; charset=utf-8")
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
            self._head("text/event-stream")
            self.end_headers()
            feed.stream(self.wfile.write)
        finally:
            feed.listeners -= 1

    def _head(self, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in {"Content-Type": kind, **_HEADERS}.items():
            self.send_header(name, value)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the address holds the secret."""


Curve = tuple[CurveKey, list[tuple[int, float]]]


def page(name: str, state: State) -> str:
    """The whole page of a run at one moment; its script replaces the sections that changed."""
    return render(
        "experiments.extras.watch",
        "watch.html.j2",
        name=name,
        state=state,
        settled=sum(_settled(cell) for cell in state.cells),
        planned=sum(cell.planned or cell.jobs.total() for cell in state.cells),
        counted=all(cell.planned is not None for cell in state.cells),
        cells=[(cell, _settled(cell), _words(cell)) for cell in state.cells],
        place=_place,
        leakage=[
            (line, len(values), show(fmean(values), unit_of(line.metric)))
            for line, by_round in state.leakage.items()
            for values in [[*chain(*by_round.values())]]
        ],
        figures=list(_figures(state)),
        unit=unit_of,
        script=SCRIPT,
        connect="'self'",
    )


def _settled(cell: CellState) -> int:
    return sum(cell.jobs[state] for state in cell.jobs if state not in {"queued", "running"})


def _words(cell: CellState) -> str:
    """Its jobs but those that are done: ``2 running, 1 failed``."""
    states = (state for state in sorted(cell.jobs) if state != "done" and cell.jobs[state])
    return ", ".join(f"{cell.jobs[state]} {shown(state)}" for state in states)


def _place(line: CurveKey | CellState) -> str:
    setting, defense, options = line.place
    name = spoken(defense_name(defense, options))
    return f"{setting}: {name}" if setting else name


def _figures(state: State) -> Iterator[Figure]:
    """A panel for each metric and attack, and for each measure of utility, from two rounds on."""
    leakage = [
        (line, [(number, fmean(values)) for number, values in sorted(by_round.items())])
        for line, by_round in state.leakage.items()
        if line.attack != title(PRIOR_ONLY)
    ]
    panels: dict[tuple[str, str], list[Curve]] = {}
    for line, points in [*leakage, *state.utility.items()]:
        if len({number for number, _ in points}) > 1:
            panels.setdefault((line.metric, line.attack), []).append((line, points))
    for number, ((metric, attack), curves) in enumerate(panels.items()):
        said = f"{title(metric)} by round"
        heading = f"{attack}: {said}" if attack else said
        yield panel(f"watch-{number}", heading, heading, partial(_draw, curves), (4.6, 3.2))


def _draw(curves: list[Curve], axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    style = strokes([line.place for line, _ in curves])
    for line, points in curves:
        rounds, values = zip(*sorted(points), strict=True)
        stroke = style[line.place]
        marker = stroke.marker if len(rounds) <= FEW else ""
        axes.plot(rounds, values, color=stroke.colour, marker=marker, ms=4, label=_place(line))
    unit = unit_of(curves[0][0].metric)
    if unit in {"1", "rate"}:
        frame_shares(axes)
    elif unit == "dB":
        axes.set_ylim(min(0.0, float(axes.dataLim.y0)))  # panels of one page compare
        frame_decibels(axes)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)


_LAST_PAGE = 3.0
"""Seconds in which a followed page takes the report that replaces it."""


def serve(run: Run, port: int = 0, beside: BinaryIO | None = None) -> None:
    """Print the address, open it where there is a screen, and answer.

    Args:
        run: what is followed.
        port: of this machine; 0 takes a free one.
        beside: ends with the command that trains and attacks; None to answer until Ctrl-C.

    Raises:
        ConfigError: the port is taken.
    """
    feed = Feed(Watcher(run))
    try:
        server = Server(feed, port)
    except OSError as error:
        raise ConfigError(f"--port {port}: {error.strerror}. Name another, or 0.") from None
    until = "Ctrl-C" if beside is None else "the run ends"
    for work in (feed.follow, *([] if beside is None else [lambda: _end(feed, server, beside)])):
        threading.Thread(target=work, daemon=True).start()
    said = f"{server.url} shows private rows to whoever knows it, until {until}"
    say(said, error=beside is not None, flush=True)
    show_page(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        feed.close()
        server.server_close()


def _end(feed: Feed, server: Server, beside: BinaryIO) -> None:
    """Close once the run has ended and who follows it has the report."""
    beside.read()
    followed = feed.listeners
    feed.refresh()
    if followed and feed.ended:
        time.sleep(_LAST_PAGE)
    server.shutdown()
