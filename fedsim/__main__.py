"""``python -m fedsim``: the command line, which lies above this package."""

import runpy

if __name__ == "__main__":
    runpy.run_module("experiments.cli", run_name="__main__", alter_sys=True)
