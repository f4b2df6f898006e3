"""``fedsim watch``: a run while it goes on, in a browser on this machine."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from experiments.commands.open import show_page
from experiments.commands.parameters import RunFolder
from experiments.plan.folder import Run
from fedsim.errors import ConfigError
from fedsim.visible import say

Port = Annotated[int, typer.Option(help="port of this machine; 0 takes a free one", max=65535)]


def watch(run: RunFolder, port: Port = 0) -> None:
    """Follow a run in a browser: cells, jobs, guesses as they form, and at its end the report."""
    opened = Run.open(run)
    from experiments.watch.server import Feed, Server
    from experiments.watch.state import Watcher

    feed = Feed(Watcher(opened))
    try:
        server = Server(feed, port)
    except OSError as error:
        raise ConfigError(f"--port {port}: {error.strerror}. Name another, or 0.") from None
    threading.Thread(target=feed.follow, daemon=True).start()
    say(f"{server.url} shows private rows to whoever knows it, until Ctrl-C", flush=True)
    show_page(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        feed.close()
        server.server_close()
