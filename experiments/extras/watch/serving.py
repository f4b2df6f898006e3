"""The page of a run, until Ctrl-C or, beside a run, until that has ended."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from experiments.browser import show_page
from experiments.extras.watch.server import Feed, Server
from experiments.extras.watch.state import Watcher
from experiments.plan.folder import Run
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


@contextmanager
def watched(root: Path) -> Iterator[None]:
    """Serve the page of a run beside the block, from a process of its group.

    It is a process of its own so that neither its errors nor its threads can change a number, and
    its standard input ends with this process, however that ends.
    """
    command = [sys.executable, "-P", "-m", "experiments.extras.watch", str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as server:
        try:
            yield
        finally:
            assert server.stdin is not None
            with suppress(OSError):  # it may have ended before
                server.stdin.close()
