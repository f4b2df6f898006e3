"""What the updates of LoRA adapters say of a layer's inputs, where no span has an edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.observed.readings import Reading, read
from attacks.observed.spectrum import completed, spectrum
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.cuts import CUTS
from attacks.tokens.evidence import Evidence
from attacks.tokens.first_layers import Layer
from fedsim.models.lora import is_adapter, second_factor


@dataclass
class AdapterEvidence(Evidence):
    """Evidence of several spans, of inputs ``x`` or of ``A x``; see ``AdapterSpan``.

    The statistic is the mean of those of the parts. Its distributions are fitted like any others.

    Attributes:
        parts: evidence of each span, with the ``A (rank, width)`` that leads to it; None for ``x``.
    """

    parts: Sequence[tuple[Evidence, Tensor | None]] = ()

    def statistic(self, inputs: Tensor) -> Tensor:
        """Mean over the spans of the log of residual over prediction."""
        statistics = [
            part.statistic(inputs if a is None else inputs @ a.to(inputs).T)
            for part, a in self.parts
        ]
        return torch.stack(statistics).mean(0)

    def gram(self) -> Tensor:
        """Sum of those of the parts, in the space of ``x``."""
        parts = ((part.gram(), a) for part, a in self.parts)
        return sum((g if a is None else a.T.to(g) @ g @ a.to(g) for g, a in parts), torch.zeros(()))


def adapter_evidence(model: AttackedModel, layer: Layer, most: int) -> Evidence | None:
    """None if the layer has no adapters, they did not move or show too few directions.

    The updates of all ``A`` of the layer lie side by side, as one gradient of a layer with as many
    outputs as all ranks together. Those of each ``B`` are read where no ``A`` has moved, as in a
    single step from ``B = 0``, whose gradient for ``A`` is 0. Several steps of Adam are read as
    they came, since so few outputs do not tell a gradient from its signs.

    Args:
        model: under attack, its update of any optimizer and defense.
        layer: the layer.
        most: most tokens of the batch.
    """
    observation, device = model.observation, model.device
    names = [name for name in layer.weights(observation.received) if is_adapter(name)]
    update = observation.update([each for a in names for each in (a, second_factor(a))])
    if not all(value.isfinite().all() for value in update.values()):
        return None
    update = {name: value.to(device) for name, value in update.items() if value.any()}
    sides = [read(update[a].T) for a in names if a in update]
    whole = [(_side_by_side(sides), None)] if sides else []
    pairs = [(second_factor(a), observation.sent[a].to(device)) for a in names]
    mapped = [(read(update[b].T), factor) for b, factor in pairs if b in update]
    parts = []
    for reading, a in whole or mapped:
        seen = spectrum(completed(reading, most), most)
        if seen.rank >= CUTS.fewest_directions:
            parts.append((Evidence(layer, seen), a))
    return AdapterEvidence(layer, parts[0][0].seen, parts=parts) if parts else None


def _side_by_side(readings: Sequence[Reading]) -> Reading:
    value, lower, upper = (
        torch.cat([getattr(reading, part) for reading in readings], 1)
        for part in ("value", "lower", "upper")
    )
    return Reading(value, lower, upper)
