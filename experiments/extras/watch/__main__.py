"""``python -m experiments.extras.watch RUN``: the page beside ``fedsim run --watch``."""

import signal
import sys
from pathlib import Path

from experiments.extras.watch.serving import serve
from experiments.plan.folder import Run
from fedsim.errors import FedsimError
from fedsim.visible import say

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run takes it, and ends this one
    try:
        serve(Run.open(Path(sys.argv[1])), beside=sys.stdin.buffer)
    except (FedsimError, OSError) as error:
        say(f"--watch: {error}", error=True)
        raise SystemExit(1) from None
