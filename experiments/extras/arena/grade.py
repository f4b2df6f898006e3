"""``fedsim grade``: a submission against the truth that its bundle commits to."""

from pathlib import Path
from typing import Annotated

import typer

from fedsim.visible import say


def grade(
    submission: Annotated[Path, typer.Argument(metavar="SUBMISSION", help="of fedsim submit")],
    truth: Annotated[Path, typer.Option(metavar="FOLDER", help="what fedsim seal kept")],
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object instead of text")
    ] = False,
) -> None:
    """Score a submission: its mean with an interval over clients, beside guesses made blindly.

    The rows must open the commitments of the bundle. The grade is written to
    SUBMISSION/grade.json; its hashes bind guesses, bundle and score, and say nothing about who
    made them or at what cost.
    """
    from experiments.extras.arena.grading import grade as score

    graded = score(submission, truth)
    say(graded.model_dump_json() if as_json else graded.text())
