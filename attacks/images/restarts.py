"""The best of several restarts of a search for images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attacks.base import Reconstruction
from attacks.engine.descent import Objective, descend, drawn
from attacks.images.small_convolutions import suited_convolutions
from attacks.images.victims import VictimGroup
from fedsim.types import Batch


def best_restarts(
    victims: VictimGroup,
    draw: Callable[[torch.Generator], Tensor],
    objective: Objective,
    render: Callable[[Tensor], Tensor],
    *,
    restarts: int,
    lanes: int,
    steps: int,
    learning_rate: float,
    pixels: bool = False,
) -> list[Reconstruction]:
    """The best restart of each victim; a lane is one restart of one victim.

    Args:
        victims: to be searched for.
        draw: where a search starts.
        objective: of the variable ``start``; the last value that it gives tells which is best.
        render: what a batch of starts looks like, ``(image, channel, height, width)``.
        restarts: of each victim.
        lanes: searched at once.
        steps: of Adam.
        learning_rate: as in ``descend``.
        pixels: as in ``descend``.
    """
    ranked, starts = list[tuple[float, Reconstruction]](), drawn(victims.rngs, restarts, draw)
    for first in range(0, len(starts), lanes):
        owners, values = zip(*starts[first : first + lanes], strict=True)
        start = torch.stack(values).to(victims.job.device)
        model, images = victims.loss.model, render(start.flatten(0, 1))
        batch = Batch(images, model.task.any_labels(len(images)).to(images.device))
        run = partial(model.task.loss, model.network, batch)
        with suited_convolutions(model.network, run):
            iterates = descend(
                objective,
                {"start": start},
                victims.lanes(owners),
                victims.job,
                steps=steps,
                learning_rate=learning_rate,
                pixels=pixels,
            )
        ranks = (iterates.objective, *iterates.others)[-1].tolist()
        ranked += [
            (ranks[lane], iterates.reconstruction(lane, victims.labels[victim]))
            for lane, victim in enumerate(owners)
        ]
    apart = [ranked[i : i + restarts] for i in range(0, len(ranked), restarts)]
    return [min(tries, key=lambda pair: pair[0])[1] for tries in apart]
