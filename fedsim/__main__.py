"""``python -m fedsim``, and the command that an installation makes."""

import importlib
import os
import sys


def main() -> None:
    """Run the command line, which lies above this package."""
    importlib.import_module("experiments.cli").main()


if __name__ == "__main__":
    # Python puts the working directory first, whose modules would then stand for installed ones.
    home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if not sys.flags.safe_path and os.path.realpath(sys.path[0]) != home:
        del sys.path[0]
    main()
