"""What the received update says of the gradients of single layers."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from attacks.observed.readings import Reading, read
from attacks.observed.spectrum import completed, spectrum
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.cuts import CUTS
from attacks.tokens.evidence import Evidence
from attacks.tokens.first_layers import Layer
from fedsim.capture import Observation
from fedsim.models.lora import is_adapter, second_factor


def layer_reading(model: AttackedModel, layer: Layer, most: int) -> Reading | None:
    """What is known of a layer's gradient, imputed; None if it was not sent or is not finite."""
    observation = model.observation
    names = layer.weights(observation.received)
    if not names or is_adapter(names[0]):
        return None
    optimizer = observation.knowledge.optimizer if observation.kind != "gradient" else None
    readings = {n: read(v, optimizer) for n, v in observation.update(names).items()}
    parts = [
        model.layers.side(
            layer, {name: getattr(reading, part) for name, reading in readings.items()}
        )
        for part in ("value", "lower", "upper")
    ]
    if not parts[0].isfinite().all() or not parts[0].any():
        return None
    value, lower, upper = (part.double().to(model.device) for part in parts)
    sent = Reading(value, lower, upper)
    return replace(sent, value=completed(sent, most))


def spikes(matrix: Tensor, layer: Layer, most: int) -> Evidence | None:
    """The evidence of a layer's gradient; None if it has too few directions."""
    seen = spectrum(matrix, most)
    return None if seen.rank < CUTS.fewest_directions else Evidence(layer, seen)


def is_shown(observation: Observation, layer: Layer) -> bool:
    """Whether the layer was sent, has changed, and the update is finite."""
    names = layer.weights(observation.received)
    names += [second_factor(name) for name in names if is_adapter(name)]
    update = observation.update()
    return all(bool(v.isfinite().all()) for v in update.values()) and any(
        bool(update[name].any()) for name in names
    )


def are_signs(observation: Observation) -> bool:
    """Whether the matrices of the update are signs, or stem from Adam."""
    known = observation.knowledge
    if observation.kind != "gradient" and known.optimizer in {"adam", "adamw"}:
        return True
    sides = sorted((v for v in observation.update().values() if v.dim() == 2 and v.any()), key=len)
    return bool(sides) and all(read(side).signs for side in sides[:8])
