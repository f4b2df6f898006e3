"""Feasibility of exact attacks on the replies of a cell, before anything is simulated."""

from __future__ import annotations

from itertools import islice

from attacks import attack_classes
from attacks.base import Attack
from attacks.feasibility import Feasibility, Prospect
from experiments.preview.replies import replies
from fedsim.config.cell import CellConfig
from fedsim.defenses import build_chain
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
