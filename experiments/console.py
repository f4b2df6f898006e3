"""Progress on stderr: bars on a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from fedsim.visible import say, visible_line

_PLAIN_EVERY = 5.0
_NOTE_EVERY = 60.0
_PACE = 600.0
"""Seconds whose steps the time that is left is judged by; jobs may take minutes."""


class Console:
    """One line of progress per named task. Several threads may share it."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._tasks: dict[str, _Count] = {}
        self._bar: Progress | None = None
        if not quiet and sys.stderr.isatty():
            rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # what the counts leave
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=16),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[note]}", markup=False, table_column=rest),
                speed_estimate_period=_PACE,
                console=RichConsole(stderr=True),
                expand=True,
            )

    def __enter__(self) -> Console:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def expect(self, work: str, more: int) -> None:
        """Add ``more`` steps to the total of a task."""
        count = self._tasks.setdefault(work, _Count())
        count.total += more
        if self._bar is None:
            return
        if count.row is None:
            count.row = self._bar.add_task(work, total=count.total, note="")
        self._bar.update(count.row, total=count.total)

    def advance(self, work: str, note: str = "") -> None:
        """Count one step of a task as done."""
        count = self._tasks.setdefault(work, _Count())
        count.done += 1
        note = visible_line(note)
        if self._bar is not None and count.row is not None:
            self._bar.update(count.row, advance=1, note=note)
        elif not self._quiet and self._bar is None:
            now = time.monotonic()
            if count.done >= count.total or now - count.shown > _PLAIN_EVERY:
                count.shown = now
                remaining = count.remaining(now)
                say(f"{work}: {count.done}/{count.total}{remaining} {note}".rstrip(), error=True)

    def note(self, work: str, note: str) -> None:
        """Describe the current step. Without a terminal, prints at most once a minute."""
        count = self._tasks.get(work)
        if count is None:
            return
        if self._bar is not None and count.row is not None:
            self._bar.update(count.row, note=visible_line(note))
        elif not self._quiet and time.monotonic() - count.shown > _NOTE_EVERY:
            count.shown = time.monotonic()
            say(f"{work}: {count.done}/{count.total} {note}", error=True)


class _Count:
    """Progress of one task."""

    def __init__(self) -> None:
        self.total = 0
        self.done = 0
        self.shown = self.start = time.monotonic()
        self.row: Any = None

    def remaining(self, now: float) -> str:
        """The time that is left at the pace so far; empty at the end."""
        rest = self.total - self.done
        seconds = (now - self.start) / self.done * rest if rest > 0 else 0.0
        return f", {timedelta(seconds=round(seconds))} left" if seconds >= 1 else ""
