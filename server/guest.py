"""How an eavesdropper behaves in an application that is not its own: no fault of it is felt."""

from collections import Counter
from collections.abc import Callable
from logging import WARNING
from typing import Any, TypeVar

from flwr.common.logger import log

T = TypeVar("T")
_LENGTH = 300


class Guest:
    """Runs the eavesdropper's own work, so that the application goes on whatever comes of it.

    Args:
        strict: raise every fault, as fedsim's own simulations do, whose numbers are of captures.

    Attributes:
        ended: whether a fault has ended the capturing.
        left_out: number of single replies that could not be read, by reason.
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self.ended = False
        self.left_out: Counter[str] = Counter()

    def work(self, what: Callable[..., T], *args: Any) -> T | None:  # noqa: ANN401
        """Call ``what``; its first exception is logged and ends the capturing."""
        if self.ended:
            return None
        try:
            return what(*args)
        except Exception as error:
            if self._strict:
                raise
            self.ended = True
            log(WARNING, "fedsim: captures no more, and the training goes on: %s", line_of(error))
            return None

    def read(self, node: object, parse: Callable[..., T], *args: Any) -> T | None:  # noqa: ANN401
        """Call ``parse`` on the reply of a node; None, counted, if it cannot be read."""
        try:
            return parse(*args)
        except Exception as error:
            if self._strict:
                raise
            if not self.left_out:
                said = "fedsim: leaves out the reply of node %s, as it will others: %s"
                log(WARNING, said, node, line_of(error))
            self.left_out[line_of(error)] += 1
            return None


def line_of(error: Exception) -> str:
    """An exception in one line that is safe to print."""
    try:
        text = str(error)
    except Exception:
        text = "its message cannot be printed"
    words = " ".join(text.split())[:_LENGTH]
    shown = "".join(letter if letter.isprintable() else "?" for letter in words)
    return f"{type(error).__name__}: {shown}"
