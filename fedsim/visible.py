"""Strings of data made visible, or redacted: the one way to a terminal, a table or a page.

Words of a vocabulary, names of attacks and columns, values and paths may come from a stranger. A
control character in them could move the cursor, recolour a terminal or hide what it follows, and a
bidirectional one shows text in another order than it is.
"""

import html
import re
import sys
from pathlib import Path

_BIDIRECTIONAL = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\U000e0000-\U000e007f"
_HIDDEN = re.compile(f"[{_CONTROL}{_BIDIRECTIONAL}]")

_FORMULA = ("=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What spreadsheets take for the start of a formula, in both widths."""


def visible(text: str) -> str:
    r"""The text with every control, bidirectional and unpaired character as an escape: ``\x1b``.

    Line feeds and tabs stay.
    """
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def visible_line(text: str) -> str:
    r"""As ``visible``, on one line: line feeds and tabs are escapes as well, ``\n`` and ``\t``."""
    return visible(text).replace("\n", r"\n").replace("\t", r"\t")


def inert(text: str) -> str:
    """As ``visible``, for a cell of a table; behind an apostrophe where it were a formula."""
    shown = visible(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def escaped(text: str) -> str:
    """As ``visible``, as HTML."""
    return html.escape(visible(text))


def say(text: object, *, error: bool = False, flush: bool = False) -> None:
    """Print a text to stdout or stderr, made visible; all that a command prints comes here."""
    print(visible(str(text)), file=sys.stderr if error else sys.stdout, flush=flush)


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
