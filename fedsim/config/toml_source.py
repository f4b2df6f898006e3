"""TOML files, read and checked for values that no option accepts."""

import math
import tomllib
from collections.abc import Mapping
from datetime import date, time
from pathlib import Path
from typing import Any

from fedsim.config.build import locate
from fedsim.errors import ConfigError

_DEPTH = 50
"""Most levels of options within options."""


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file. A syntax error is reported with its file and line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, or of Python's limits
        fault = str(error).rstrip(".")
        raise ConfigError(f"{path}: not valid TOML: {fault}. Correct the file.") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Correct the path.") from None


def check_values(value: object, where: str) -> None:
    """Raise ``ConfigError`` for a value that TOML allows and no option accepts."""
    if where.count(".") > _DEPTH:
        raise ConfigError(f"{where[:20]}...: nested too deeply. Remove the inner levels.")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_text(key, where or "the experiment")
            check_values(inner, locate(where, key))
    elif isinstance(value, str):
        _check_text(value, where)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            check_values(inner, locate(where, i))
    elif isinstance(value, date | time):
        raise ConfigError(f"{where}: {value} is a date or time. Quote it to make it text.")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {value} is not a finite number. Write a finite one.")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{where}: {value} does not fit in 64 bits. Write a smaller number.")


def _check_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, as the command line makes of other encodings
        raise ConfigError(f"{where}: {text!r} is not valid Unicode. Write it in UTF-8.") from None
