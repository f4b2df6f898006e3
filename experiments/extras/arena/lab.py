"""``fedsim lab``: five puzzles on sealed toy tracks, hints, and an autograder."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from experiments.extras.arena.grading import grade
from experiments.extras.arena.sealing import seal, secret_settings
from experiments.pipeline import execute
from experiments.plan.cells import Cell
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run
from experiments.plan.overrides import override
from fedsim.errors import ConfigError

START = "fedsim lab start"


@dataclass(frozen=True)
class Puzzle:
    """One puzzle of ``puzzles.toml``.

    Attributes:
        number: from 1.
        answer: ``classes`` and ``lengths`` are numbers, by client; a ``submission`` is a folder.
        hints: each tells more than the one before.
        least: mean that a submission has to reach.
        experiment: what is sealed.
    """

    number: int
    title: str
    question: str
    answer: Literal["classes", "lengths", "submission"]
    hints: tuple[str, ...]
    experiment: dict[str, Any]
    least: float = 0.0

    def hint(self, level: int) -> str:
        """The hint of a level, from 1."""
        if not 1 <= level <= len(self.hints):
            raise ConfigError(f"lab hint {self.number}: levels are 1 to {len(self.hints)}.")
        return self.hints[level - 1]


@dataclass(frozen=True)
class Lab:
    """A folder with the sealed tracks of all puzzles, each ``<number>/bundle`` and ``/truth``."""

    root: Path

    @cached_property
    def puzzles(self) -> tuple[Puzzle, ...]:
        """All puzzles, in their order."""
        text = files("experiments.extras.arena").joinpath("puzzles.toml").read_text("utf-8")
        tables = tomllib.loads(text)["puzzle"]
        return tuple(
            Puzzle(number=i, **{**table, "hints": tuple(table["hints"])})
            for i, table in enumerate(tables, 1)
        )

    def puzzle(self, number: int) -> Puzzle:
        """The puzzle of a number; raises ``ConfigError`` if there is none."""
        if not 1 <= number <= len(self.puzzles):
            raise ConfigError(f"lab: there is no puzzle {number}, only 1 to {len(self.puzzles)}.")
        return self.puzzles[number - 1]

    def start(self) -> None:
        """Simulate and seal each track that is not there, under a secret of its own."""
        for puzzle in self.puzzles:
            folder = self.root / str(puzzle.number)
            if not (folder / "bundle").exists():
                run = Run.create(_plan(puzzle), folder / "run")
                execute(run, ("simulate",), quiet=True)
                seal(run, folder)

    def check(self, number: int, answer: str) -> tuple[bool, str]:
        """Whether an answer solves a puzzle, and a line that says how far it is right.

        Raises:
            ConfigError: the lab was not started, or the answer is none.
            StoreError: a submission is about another bundle.
        """
        puzzle, truth = self.puzzle(number), self.root / str(number) / "truth"
        if not truth.is_dir():
            raise ConfigError(f"{self.root}: has no puzzle {number}. Run {START} first.")
        if puzzle.answer == "submission":
            graded = grade(Path(answer), truth)
            solved = graded.score.mean >= puzzle.least
            return solved, f"{graded.metric} {graded.score.mean:.3g}, and {puzzle.least:g} is asked"
        wanted, given = _private(puzzle, Run.open(truth).cells[0]), _numbers(answer)
        if len(given) != len(wanted):
            raise ConfigError(
                f"lab check {number}: {answer!r} is not {len(wanted)} numbers. Write them with "
                "commas."
            )
        right = sum(a == b for a, b in zip(given, wanted, strict=True))
        return right == len(wanted), f"{right} of {len(wanted)} are right"


def _plan(puzzle: Puzzle) -> Plan:
    plan = Plan(name=puzzle.experiment["name"], experiments=(parse_experiment(puzzle.experiment),))
    table = plan.experiments[0].model_dump(mode="json", exclude_none=True)
    config = parse_experiment(override(table, secret_settings(plan)))
    return plan.model_copy(update={"experiments": (config,)})


def _private(puzzle: Puzzle, cell: Cell) -> list[int]:
    """What is asked of the first round's clients, who have one example each."""
    batches = [cell.truth.load(key) for key in cell.captures.keys() if key.round == 1]
    if puzzle.answer == "classes":
        return [int(batch.labels[0]) for batch in batches]
    return [int(batch.mask.sum()) for batch in batches if batch.mask is not None]


def _numbers(text: str) -> Sequence[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        return []
