"""The page of a run, until Ctrl-C or, beside a run, until that has ended."""

from __future__ import annotations

import threading
import time
from typing import BinaryIO

from experiments.extras.watch.server import Feed, Server
from experiments.extras.watch.state import Watcher
from fedsim.api import Run
from fedsim.api.calls import show_page
from fedsim.errors import ConfigError
from fedsim.visible import say

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
