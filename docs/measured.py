"""The files of ``docs/results``: measured values and where each comes from."""

from __future__ import annotations

import json
import os
import subprocess
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PAPERS = RESULTS / "papers"
HEADLINES = "headline"
DASH = "\N{EN DASH}"
BY_HAND = "by hand"
"""In place of a source: the commit of the run whose report the value was copied from."""


class Strict(BaseModel):
    """A frozen record of a result file; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(Strict):
    """One measured value.

    Attributes:
        setting: what distinguishes this value from the others, by the name of the column.
        measure: what was measured.
        n: number of victims, batches or seeds behind the mean.
        mean: the value; for the unit ``of n`` the share of the ``n`` that succeeded.
        low: lower end of the 95 % interval, where one was measured.
        high: upper end.
        unit: unit of the value, ``1`` for a ratio.
        paper_value: the paper's number in the same unit, where it has one for this setting.
        outcome: what happened, where a number does not say it.
        source: where the value stands in the run, by labels of ``docs.values`` and ``measure``; or,
            under ``BY_HAND``, the commit of the run that it was copied from by hand.
    """

    setting: dict[str, str]
    measure: str
    n: int | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "1"
    paper_value: float | None = None
    outcome: str = ""
    source: dict[str, str] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Row:
        values = (self.mean, self.low, self.paper_value)
        if all(value is None for value in values) and not self.outcome:
            raise ValueError(f"{self.setting}: a row needs a value or an outcome")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{self.setting}: an interval has two ends")
        if self.unit == "of n" and self.mean is not None and self.n is None:
            raise ValueError(f"{self.setting}: a share 'of n' needs n")
        return self

    @property
    def measured(self) -> bool:
        """Whether it has a number of ours."""
        return self.mean is not None or self.low is not None

    @property
    def by_hand(self) -> bool:
        """Whether it was copied from a run, so that no command makes it again."""
        return self.source is not None and BY_HAND in self.source

    def text(self, digits: int) -> str:
        """The value with its interval, or the outcome."""
        parts = []
        if self.unit == "of n" and self.mean is not None and self.n is not None:
            parts.append(f"{round(self.mean * self.n)} of {self.n}")
        elif self.mean is not None:
            parts.append(self._number(self.mean, digits))
        # Without width it says that all victims score alike, and nothing of others.
        if self.low is not None and self.high is not None and self.low < self.high:
            low, high = self._number(self.low, digits), self._number(self.high, digits)
            parts.append(f"{low} to {high}" if self.mean is None else f"[{low}, {high}]")
        if self.outcome:
            parts.append(self.outcome if not parts else f"({self.outcome})")
        return " ".join(parts) or DASH

    def _number(self, value: float, digits: int) -> str:
        """With the digits of its measure; a percentage with those that were recorded."""
        return f"{value:g}" if self.unit == "percent" else number(value, digits)


class Columns(Strict):
    """How the rows are laid out.

    Attributes:
        lines: the settings that name a line; ``measure`` may be one of them.
        across: the setting, or ``measure``, whose values are the columns.
        paper: whether the paper's values stand in columns or in lines of their own.
        digits: decimal places of each measure; 2 where it is not named.
    """

    lines: tuple[str, ...]
    across: str = "measure"
    paper: Literal["column", "line"] = "column"
    digits: dict[str, int] = {}


class ResultFile(Strict):
    """One file of ``docs/results``: one table and where it comes from.

    Attributes:
        paper: the paper it stands beside, or an empty text.
        command: what reproduces it.
        commit: the commit that recorded the numbers.
        seed: None where it is secret.
        machine: what it was measured on.
        cpu_seconds: CPU time of the command; None where it was not recorded.
        cpu_seconds_reason: why it is None.
        cpu_seconds_about: what it was then, read off or estimated, as the reason says.
        notes: what a reader has to know to compare the numbers.
        generator: the command that writes rows and notes from the finished run, where one does, so
            that they need no sources of their own.
    """

    title: str
    paper: str
    command: str
    commit: str
    date: str
    seed: int | None
    machine: str
    cpu_seconds: float | None
    cpu_seconds_reason: str = ""
    cpu_seconds_about: float | None = None
    columns: Columns
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    generator: str = ""

    @model_validator(mode="after")
    def _names_its_sources(self) -> ResultFile:
        bare = [row.setting for row in self.rows if row.measured and row.source is None]
        if bare and not self.generator:
            raise ValueError(f"{bare[0]} has a value and no source. Name its source.")
        return self

    @model_validator(mode="after")
    def _accounts_for_time(self) -> ResultFile:
        if (self.cpu_seconds is None) != bool(self.cpu_seconds_reason):
            raise ValueError("give cpu_seconds, or the reason why it is missing")
        if self.cpu_seconds is not None and self.cpu_seconds_about is not None:
            raise ValueError("cpu_seconds is recorded: leave cpu_seconds_about out")
        return self


class Reference(Strict):
    """One cell of the README's table: which value of which file it repeats."""

    result: str
    setting: dict[str, str]
    measure: str


class Headline(Strict):
    """One line of the README's table.

    Attributes:
        victims: the value that counts them, where the first of ``references`` has no ``n``.
    """

    question: str
    answer: str
    references: tuple[Reference, ...]
    victims: Reference | None = None


class Headlines(Strict):
    """The README's table; ``answer`` has ``{0}``, ``{1}`` and so on where a value belongs."""

    rows: tuple[Headline, ...]


def number(value: float, digits: int) -> str:
    """A number with a true minus sign."""
    return f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}")


def significant(value: float | None) -> float | None:
    """The value with the five significant digits that a result file keeps."""
    return None if value is None else float(f"{value:.5g}")


def read(name: str) -> ResultFile:
    """One result file."""
    return _parsed((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=256)  # a page reads some of the files for each of its numbers
def _parsed(text: str) -> ResultFile:
    return ResultFile.model_validate(json.loads(text))


def read_headlines() -> Headlines:
    """The lines of the README's table."""
    text = (RESULTS / f"{HEADLINES}.json").read_text(encoding="utf-8")
    return Headlines.model_validate(json.loads(text))


def named_row(reference: Reference) -> Row:
    """The one value that a reference names."""
    matching = [
        row
        for row in read(reference.result).rows
        if row.measure == reference.measure and reference.setting.items() <= row.setting.items()
    ]
    if len(matching) != 1:
        raise LookupError(f"{reference}: {len(matching)} values. Name exactly one.")
    return matching[0]


def digits(reference: Reference) -> int:
    """Decimal places of the value that a reference names."""
    return read(reference.result).columns.digits.get(reference.measure, 2)


def look_up(reference: Reference) -> str:
    """The one value that a reference names, with its interval."""
    return named_row(reference).text(digits(reference))


def made_here(seconds: float | None, threads: str = ", one thread") -> dict[str, Any]:
    """Where a result of a benchmark comes from: this commit, date and machine, by field.

    Args:
        seconds: CPU time of the command.
        threads: what the machine's cores were used for.
    """
    head = ["git", "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {
        "commit": commit[:7],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seed": 0,
        "machine": f"{os.cpu_count()} CPU cores, no GPU{threads}",
        "cpu_seconds": None if seconds is None else round(seconds),
    }
