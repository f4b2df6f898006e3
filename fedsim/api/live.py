"""``live.json``: what the running jobs of a run have so far."""

from __future__ import annotations

import base64
from pathlib import Path

from fedsim.store.files import Record, read_record

FILE = "live.json"


class Forming(Record):
    """A running job.

    Attributes:
        objective: None before the first.
        text: the guess so far, if it is one.
        image: the guess so far as a PNG file in Base64; empty if it is none.
    """

    phase: str
    step: int
    objective: float | None
    text: str
    image: str = ""

    @property
    def picture(self) -> bytes:
        """The PNG file."""
        return base64.b64decode(self.image)


class LiveRecord(Record):
    """``live.json``: the running jobs by the name of their first capture's row in the ledger."""

    jobs: dict[str, Forming]


def read_live(run: Path) -> dict[str, Forming]:
    """The running jobs; none without a file.

    Raises:
        FedsimError: the file is broken, or no file.
    """
    path = run / FILE
    return read_record(path, LiveRecord).jobs if path.exists() else {}
