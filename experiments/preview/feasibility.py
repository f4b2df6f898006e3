"""Expected replies of a cell, and exact attacks feasible on them, before it is simulated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from attacks import attack_classes
from attacks.base import Attack
from attacks.feasibility import Feasibility, Prospect
from fedsim.config.cell import CellConfig
from fedsim.data.partition import partition
from fedsim.defenses import build_chain
from fedsim.local.steps import schedule
from fedsim.participation import cohorts_of, draw
from fedsim.tasks.base import Task
from fedsim.types import Batch, Rows, Tensors

_REPLIES = 32  # looked at, the first ones
_SHORT = 50  # rows, of which the shortest text is the single example


def feasible(
    config: CellConfig, task: Task, private: Rows, weights: Tensors
) -> dict[str, Feasibility]:
    """What each attack of the registry says that can tell, on what the model is, by name.

    The attacks' own checks decide on the model, by one example's gradient without a defense; the
    counts are those of the private rows. Nothing is attacked, and nothing said of a cell that
    keeps no reply.
    """
    if next(replies(config, private.labels), None) is None:
        return {}
    prospect = prospect_of(config, task, private, weights)
    by_attack = {
        name: cls().feasible(prospect)
        for name, cls in attack_classes().items()
        if task.modality in cls.modalities and cls.feasible is not Attack.feasible
    }
    return {name: feasibility for name, feasibility in by_attack.items() if feasibility is not None}


def prospect_of(config: CellConfig, task: Task, private: Rows, weights: Tensors) -> Prospect:
    """The first model and replies of a cell."""
    some = tuple(islice(replies(config, private.labels), _REPLIES))
    chain = build_chain(config.defense, "defense")
    network = task.model(weights).eval()
    chain.on_model(network)
    for name, parameter in network.named_parameters():
        if not config.capture.keeps_tensor(name):
            parameter.requires_grad = False
    run = config.federation
    return Prospect(
        task,
        weights,
        network,
        tuple(len(reply.rows) for reply in some),
        lambda: (task.encode(private.take(reply.rows)) for reply in some),
        _single(task, private),
        steps=max(reply.steps for reply in some),
        optimizer=run.optimizer if run.protocol == "fedavg" else None,
        distortions=chain.distortions,
        train_mode=run.train_mode,
    )


def _single(task: Task, private: Rows) -> Batch:
    """The first image, or the shortest of some texts."""
    rows = private.take(range(min(len(private), _SHORT)))
    batch = task.encode(rows)
    shortest = 0 if batch.mask is None else int(batch.mask.sum(1).argmin())
    return task.encode(rows.take([shortest]))


@dataclass(frozen=True, slots=True)
class ExpectedReply:
    """What one reply is about.

    Attributes:
        rows: positions among the private rows; of all clients of a cohort.
        steps: local steps.
    """

    rows: tuple[int, ...]
    steps: int


def replies(config: CellConfig, labels: Tensor) -> Iterator[ExpectedReply]:
    """The replies that the server will keep, by round and client, as the clients draw them."""
    run, seed = config.federation, config.seed
    parts = partition(labels, run.clients, run, seed)
    for round_ in config.captured_rounds:
        drawn = draw(seed, round_, run.clients, run.participation)
        groups: Sequence[tuple[int, ...]] = [(client,) for client in drawn]
        if run.cohort > 1:
            groups = cohorts_of(run, seed, round_)
        elif config.capture.clients:
            groups = [group for group in groups if group[0] in config.capture.clients]
        for group in groups:
            rows: list[int] = []
            steps = 0
            for client in group:
                plan = schedule(run, seed, len(parts[client]), round_, client)
                used = dict.fromkeys(position for step in plan for position in step)
                rows += [parts[client][position] for position in used]
                steps = max(steps, len(plan))
            yield ExpectedReply(tuple(rows), steps)
