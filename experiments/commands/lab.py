"""``fedsim lab``: puzzles for a class."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from fedsim.errors import ConfigError
from fedsim.visible import say


class Do(Enum):
    """What to do."""

    LIST = "list"
    START = "start"
    SHOW = "show"
    HINT = "hint"
    CHECK = "check"


def lab(
    action: Annotated[Do, typer.Argument(help="list, start, show N, hint N LEVEL, check N ANSWER")],
    number: Annotated[int | None, typer.Argument(metavar="N", show_default=False)] = None,
    answer: Annotated[
        str | None, typer.Argument(metavar="LEVEL_OR_ANSWER", show_default=False)
    ] = None,
    folder: Annotated[Path, typer.Option(metavar="PATH", help="the sealed tracks")] = Path("lab"),
) -> None:
    """Solve five puzzles on sealed toy tracks: classes, lengths, texts, pictures and noise.

    start seals the tracks, show asks, hint helps, in three levels, and check grades. Exit code 1
    says that an answer is wrong.
    """
    from experiments.extras.arena.lab import Lab

    room = Lab(folder)
    if action is Do.LIST:
        say("\n".join(f"{puzzle.number}  {puzzle.title}" for puzzle in room.puzzles))
    elif action is Do.START:
        room.start()
        say(f"{len(room.puzzles)} tracks are sealed in {folder}. Begin with fedsim lab show 1.")
    elif number is None:
        raise ConfigError(f"lab {action.value}: name a puzzle, 1 to {len(room.puzzles)}.")
    elif action is Do.SHOW:
        puzzle = room.puzzle(number)
        say(f"{puzzle.number}. {puzzle.title}\n{puzzle.question}")
    elif answer is None:
        raise ConfigError(f"lab {action.value} {number}: a level or an answer is missing.")
    elif action is Do.HINT:
        say(room.puzzle(number).hint(int(answer) if answer.isdecimal() else 0))
    else:
        solved, line = room.check(number, answer)
        say(f"{'solved' if solved else 'not yet'}: {line}")
        raise typer.Exit(0 if solved else 1)
