"""What is passed on names no folder and no user of the machine, and no key of a URL."""

from __future__ import annotations

import re
from pathlib import Path

_PATH = re.compile(
    r"(?<![\w.:/<-])(?:~[\w.-]*)?/(?:[^\s/'\"`,;()\[\]<>]+/)*([^\s/'\"`,;()\[\]<>]+)"
)
_QUERY = re.compile(r"(\w+://[^\s?'\"]+)\?[^\s'\"]*")


def redacted(text: str) -> str:
    """A text, also of HTML, with absolute paths cut to their last part and URLs to their path.

    What lies below the working directory is named from there.
    """
    short = _QUERY.sub(r"\1?...", text).replace(f"{Path.cwd()}/", "")
    return _PATH.sub(r".../\1", short)
