"""``fedsim prepare``: a run folder for an engine of one's own."""

from experiments.commands.parameters import Out, Seed, Sets, Target
from experiments.invocation import Invocation, folder_of
from fedsim.visible import say


def prepare(experiment: Target, sets: Sets = None, out: Out = None, seed: Seed = None) -> None:
    """Create the run folder and print its cells, to simulate with flwr run or your own engine."""
    folder = folder_of(out) if out else None
    for cell in Invocation(experiment, sets or [], folder, seed).run(("simulate",)).cells:
        say(cell.folder.resolve())
