"""``fedsim prepare``: a run folder for an engine of one's own."""

from __future__ import annotations

from experiments.commands.parameters import Out, Seed, Sets, Target
from experiments.invocation import Invocation
from experiments.mirror import working_folder
from fedsim.visible import say


def prepare(experiment: Target, sets: Sets = None, out: Out = None, seed: Seed = None) -> None:
    """Create the run folder and print its cells, to simulate with flwr run or your own engine."""
    with working_folder(experiment, out, ()) as (target, folder):
        for cell in Invocation(target, sets or [], folder, seed).run(("simulate",)).cells:
            say(cell.folder.resolve())
