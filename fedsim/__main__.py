"""``python -m fedsim``, and the command that an installation makes."""

import importlib


def main() -> None:
    """Run the command line, which lies above this package."""
    importlib.import_module("experiments.cli").main()


if __name__ == "__main__":
    main()
