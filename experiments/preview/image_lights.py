"""Traffic lights of exact attacks on images: examples against the width of the first layer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn
from torch.nn import functional as F

from attacks.observed.first_linear import find_first_linear
from attacks.solved.closed_form import convolutions
from attacks.solved.spear import Spear
from experiments.preview.feasibility import Colour, Lamp, Light
from fedsim.errors import CannotAttack
from fedsim.seeds import generator


def image_lights(lamp: Lamp) -> Iterator[Light]:
    """spear, ratio and closed_form."""
    network = lamp.network.double()
    try:
        layer = find_first_linear(network, lamp.task, generator(lamp.config.seed, "light"))
    except CannotAttack as error:
        for attack in ("spear", "ratio"):
            yield Light(attack, "red", "examples", lamp.examples, None, error.reason)
    else:
        linear = network.get_submodule(layer.module)
        assert isinstance(linear, nn.Linear)
        yield _spear(lamp, linear)
        yield _ratio(lamp, linear)
    yield _closed_form(lamp, network)


def _spear(lamp: Lamp, linear: nn.Linear) -> Light:
    limit = min(linear.out_features, linear.in_features + 1) - 1
    drawn = Spear().samples
    likely = 1 + int(math.log2(drawn))
    more = ""
    if max(lamp.examples) > likely:
        more = f"of 2^(B-1) submatrices it draws {drawn:,}, enough for about B = {likely}"
    return lamp.light("spear", "examples", lamp.examples, limit, more)


def _ratio(lamp: Lamp, linear: nn.Linear) -> Light:
    alone = []
    for reply in lamp.replies:
        images = lamp.task.encode(lamp.private.take(reply.rows)).inputs.flatten(1).double()
        active = F.linear(images, linear.weight, linear.bias) > 0
        alone.append(int(((active & (active.sum(0) == 1)).sum(1) > 1).sum()))
    what, total = "examples with two units of their own", sum(lamp.examples)
    share = sum(alone) / total
    colour: Colour = "green" if share == 1 else "amber" if share else "red"
    reason = "" if share == 1 else f"{share:.0%} of the examples, at the first weights"
    return Light("ratio", colour, what, tuple(alone), None, reason)


def _closed_form(lamp: Lamp, network: nn.Module) -> Light:
    what = "examples"
    try:
        layers = convolutions(network, lamp.task.spec.input_shape)
    except CannotAttack as error:
        return Light("closed_form", "red", what, lamp.examples, 1, error.reason)
    if missing := [one.name for one in layers if f"{one.name}.weight" not in lamp.sent]:
        reason = f"{missing[0]!r} is not sent"
        return Light("closed_form", "red", what, lamp.examples, 1, reason)
    return lamp.light("closed_form", what, lamp.examples, 1)
