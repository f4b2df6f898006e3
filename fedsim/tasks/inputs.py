"""Inputs of a network in their owner's shape and range, and as the pixels that attacks look for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.errors import ConfigError
from fedsim.models.network import copied

_CODES = 8  # places of a row of codes, where nobody says how many there are
Range = tuple[float | Sequence[float], float | Sequence[float]]
"""Smallest and largest value, or one of each for every channel."""


@dataclass(frozen=True)
class InputForm:
    """``low + (high - low) * pixels`` in the owner's shape.

    A row of a table becomes as many channels of one pixel, none of them beside another; a window of
    sensors, ``(channel, time)``, an image of one line.

    Attributes:
        shape: of an input, as the network takes it.
        low: of each channel, or of all.
        high: of each channel, or of all.
    """

    shape: tuple[int, ...]
    low: tuple[float, ...] = (0.0,)
    high: tuple[float, ...] = (1.0,)

    @classmethod
    def of(cls, shape: object, bounds: object) -> InputForm:
        """The form of an owner's description.

        Raises:
            ConfigError: it is none.
        """
        if (
            not isinstance(shape, Sequence)
            or isinstance(shape, str)
            or not shape
            or not all(isinstance(size, int) and size > 0 for size in shape)
        ):
            wrong = f"{shape} is not that of an input" if shape else "it is not known"
            raise ConfigError(
                f"input_shape: {wrong}. Pass that of one client's example: "
                "image_shape=(3, 32, 32) for images (channel, height, width), input_shape=(20,) "
                "for rows of a table, input_shape=(6, 128) for windows of sensors. In a shell: "
                "--image-shape 3,32,32, --input-shape 20 or --input-shape 6,128."
            )
        if bounds is None:
            return cls(tuple(shape))
        try:
            low, high = (_numbers(bound) for bound in bounds)  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            low, high = (), ()
        fits = {len(low), len(high)} <= {1, shape[0]} and len(low) > 0 and len(high) > 0
        if not fits or not all(
            math.isfinite(a) and math.isfinite(b) and a < b for a, b in _paired(low, high)
        ):
            raise ConfigError(
                f"input_range: {bounds} is no smallest and largest value. Pass two numbers, or one "
                f"of each for the {shape[0]} channels, for example input_range=(-1, 1)."
            )
        return cls(tuple(shape), low, high)

    @property
    def pixels(self) -> tuple[int, int, int]:
        """``(channel, height, width)``."""
        if len(self.shape) == 1:
            return (self.shape[0], 1, 1)
        if len(self.shape) == 2:
            return (self.shape[0], 1, self.shape[1])
        return (math.prod(self.shape[:-2]), self.shape[-2], self.shape[-1])

    @property
    def plain(self) -> bool:
        """Whether inputs are taken to lie in [0, 1]."""
        return (self.low, self.high) == ((0.0,), (1.0,))

    def given(self, pixels: Tensor) -> Tensor:
        """Inputs ``(example, *shape)`` from pixels ``(example, channel, height, width)``."""
        values = pixels.reshape(len(pixels), *self.shape)
        if self.plain:
            return values
        low, high = self._bounds(values)
        return low + (high - low) * values

    def read(self, inputs: Tensor) -> Tensor:
        """The inverse of ``given``."""
        if not self.plain:
            low, high = self._bounds(inputs)
            inputs = (inputs - low) / (high - low)
        return inputs.reshape(len(inputs), *self.pixels)

    def _bounds(self, values: Tensor) -> list[Tensor]:
        after = [1] * (len(self.shape) - 1)
        return [
            torch.tensor(bound, dtype=values.dtype, device=values.device).view(-1, *after)
            for bound in (self.low, self.high)
        ]


def _numbers(bound: object) -> tuple[float, ...]:
    if isinstance(bound, Tensor):
        bound = bound.tolist()
    return tuple(map(float, bound)) if isinstance(bound, Sequence) else (float(bound),)  # type: ignore[arg-type]


def _paired(low: tuple[float, ...], high: tuple[float, ...]) -> list[tuple[float, float]]:
    size = max(len(low), len(high))
    return list(zip(low * (size // len(low)), high * (size // len(high)), strict=True))


def refuse_codes(network: nn.Module, shape: tuple[int, ...]) -> None:
    """Refuse a network that looks whole numbers up and takes no others; its rows tell them.

    Raises:
        ConfigError: says how.
    """
    tables = [
        k for k, m in network.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)
    ]
    shapes = [shape, (_CODES,)] if shape else [(_CODES,)]
    if (
        tables
        and not any(_takes(network, torch.full((1, *each), 0.5)) for each in shapes)
        and any(_takes(network, torch.zeros(1, *each, dtype=torch.int64)) for each in shapes)
    ):
        raise ConfigError(
            f"model: {type(network).__name__} looks up codes in {tables[0]!r}, and fedsim searches "
            "numbers, or texts of transformers' models. Read a client's codes without an attack: "
            f"they are the rows of '{tables[0]}.weight' that its update changes, "
            "(update != 0).any(1).nonzero()."
        )


def _takes(network: nn.Module, inputs: Tensor) -> bool:
    try:
        with torch.no_grad():
            copied(network).cpu().eval()(inputs)
    except Exception:  # the network is foreign code
        return False
    return True
