"""What a layer is given of an image: its pixels, normalised or as they are, in some order."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.utils.parametrize import is_parametrized

from attacks.observed.calls import noted
from fedsim.errors import CannotAttack
from fedsim.tasks.base import Task
from fedsim.types import Batch

_PROBES = 4  # images: a black, a white, one in which no value occurs twice, and a random one
_ROUNDING = 1e-4
"""Relative error of float32 that leaves a map affine; half and twice as much change no test."""
_BEYOND = 1e-3
"""By how much rounding may take solved pixels out of [0, 1]."""


@dataclass(frozen=True, slots=True)
class SeenInput:
    """``scale * image[order] + shift``, value by value.

    Attributes:
        scale: ``(value,)`` in float64.
        shift: ``(value,)``.
        order: number of the pixel of each value, ``(value,)``, such as of channels that come last.
    """

    scale: Tensor
    shift: Tensor
    order: Tensor

    def image(self, values: Tensor) -> Tensor:
        """Pixels ``(..., value)`` of which a layer is given ``values (..., value)``."""
        return ((values - self.shift) / self.scale)[..., self.order.argsort()]

    @property
    def plain(self) -> bool:
        """Whether the layer is given the pixels as they are."""
        ordered = bool((self.order.diff() == 1).all())
        return ordered and bool((self.scale == 1).all() and (self.shift == 0).all())


def seen_input(network: nn.Module, task: Task, layer: str) -> SeenInput:
    """How the input of a layer depends on the pixels.

    Told from four images, since the owner's loss or the network may normalise.

    Raises:
        CannotAttack: the layer is given something else.
    """
    like = next(network.parameters())
    rng = torch.Generator().manual_seed(0)
    pixels = torch.rand(_PROBES, *task.spec.input_shape, generator=rng)
    pixels[0], pixels[1] = 0, 1
    distinct = torch.randperm(pixels[2].numel(), generator=rng) / pixels[2].numel()
    pixels[2] = distinct.view_as(pixels[2])
    pixels = pixels.to(like)
    with torch.no_grad(), noted({layer: network.get_submodule(layer)}) as calls:
        task.loss(network, Batch(pixels, task.any_labels(_PROBES).to(like.device)))
    inputs = [call.input.detach() for call in calls]
    flat = pixels.flatten(1).double()
    if inputs and inputs[0].numel() == flat.numel() and len(inputs[0]) == _PROBES:
        values = inputs[0].flatten(1).double()
        scale, shift = values[1] - values[0], values[0]
        if bool((scale != 0).all()):
            order = torch.empty_like(scale, dtype=torch.int64)
            order[((values[2] - shift) / scale).argsort()] = flat[2].argsort()
            error = (scale * flat[:, order] + shift - values).abs().max()
            if float(error) <= _ROUNDING * float(values.abs().max()):
                return SeenInput(scale, shift, order)
    check_plain(network, layer)
    raise CannotAttack(
        f"{layer!r} of {type(network).__name__} is not given the pixels one by one",
        "Choose a model whose first layer takes the image, or an attack that searches.",
    )


def check_plain(network: nn.Module, layer: str) -> None:
    """Refuse a layer whose gradient no equation for its input is known of.

    Raises:
        CannotAttack: it is recurrent, looks categories up, computes its weight, or is a convolution
            over volumes or a transposed one.
    """
    where = f".{layer}".partition(".parametrizations")[0].removeprefix(".")
    part, name = network.get_submodule(where), f"{where!r} of {type(network).__name__}"
    names = {key for key, _ in part.named_parameters(recurse=False)}
    reason = ""
    if isinstance(part, nn.RNNBase):
        reason = "is recurrent, and its gradient is the sum over all steps"
    elif isinstance(part, nn.Embedding):
        reason = "looks categories up in a table, which no equation inverts"
    elif isinstance(part, nn.Conv3d | _ConvTransposeNd):
        reason = f"is {type(part).__name__}, whose equations are not solved"
    elif where != layer or {"weight_v", "weight_orig"} & names or _parametrised(network, where):
        reason = (
            "computes its weight (weight norm, spectral norm or another parametrisation), so that "
            "its gradient is not that of a plain layer"
        )
    if reason:
        raise CannotAttack(f"{name} {reason}", "Choose an attack that searches.")


def _parametrised(network: nn.Module, layer: str) -> bool:
    return bool(is_parametrized(network.get_submodule(layer), "weight"))


def range_note(images: Tensor, task: Task) -> str:
    """What range solved pixels have, if they leave [0, 1]; else empty."""
    low, high = float(images.min()), float(images.max())
    if low >= -_BEYOND and high <= 1 + _BEYOND:
        return ""
    form = getattr(task, "form", None)
    if form is None or form.plain:
        return f"its values run from {low:.3g} to {high:.3g}; attacks that search need input_range"
    given = form.given(images)
    return f"its values run from {given.min():.3g} to {given.max():.3g}, beyond input_range"
