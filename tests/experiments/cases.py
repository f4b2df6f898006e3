"""What commands say."""

import contextlib
import io
import sys

import pytest

from experiments import cli


def told(arguments: list[str]) -> tuple[int, str]:
    """Exit code and stderr of a command; an exception that it does not catch fails the test."""
    printed, said = io.StringIO(), io.StringIO()
    sys.argv = ["fedsim", *arguments]
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(said),
        pytest.raises(SystemExit) as stop,
    ):
        cli.main()
    return int(stop.value.code or 0), said.getvalue()
