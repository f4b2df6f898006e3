"""How to go on with a run that was stopped: in one command, whichever stage it lacks."""

from __future__ import annotations

from pathlib import Path


def continuation(root: Path) -> str:
    """What finishes a run, and what shows how far it got if there is something to show.

    A sentence each. Scores need every cell trained and some guess; what is not attacked yet is
    counted on their page as partial.

    Args:
        root: its folder.
    """
    if (root.resolve().parent / "run.json").exists():  # another application's, which has no stages
        stage = "score" if any(root.glob("*/guesses/*/*.json")) else "attack"
        truth = " --truth FOLDER, if the private examples are known" if stage == "score" else ""
        return f"Run fedsim {stage} {root.parent}{truth}."
    cells = [path.parent for path in root.glob("*/cell.json")]
    trained = all((cell / "simulation.json").exists() for cell in cells)
    going_on = f"Run fedsim run {root} to finish it."
    if not (trained and any(root.glob("*/guesses/*/*.json"))):
        return going_on
    return f"{going_on} To see how far it got: fedsim score {root} && fedsim report {root}."


def to_report(root: Path) -> str:
    """What makes the report of a run that has none: of its scores, or of all that is left."""
    if (root / "scores.parquet").exists():
        return f"Run fedsim report {root} first."
    return continuation(root)
