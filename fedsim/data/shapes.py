"""Small images of shaded shapes on textured backgrounds, drawn by a seeded generator."""

from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim import seeds
from fedsim.data.builtin import Builtin

Plane: TypeAlias = NDArray[np.float64]
"""Values ``(height, width)``."""

SIDE = 32
"""Height and width in pixels."""
_AXIS = np.linspace(-1, 1, SIDE)
_X, _Y = _AXIS[None, :], _AXIS[:, None]


def _triangle(x: Plane, y: Plane) -> Plane:
    slope = np.sqrt(0.75)
    sides: Plane = np.maximum(-y, y / 2 + slope * np.abs(x))
    return sides - 0.5


def _box(x: Plane, y: Plane, width: float, height: float) -> Plane:
    return np.maximum(np.abs(x) - width, np.abs(y) - height)


def _star(x: Plane, y: Plane) -> Plane:
    sector = np.pi / 5
    radius = np.hypot(x, y)
    angle = np.abs(np.mod(np.arctan2(x, -y) + sector, 2 * sector) - sector)
    # The edge from a tip (1, 0) to the adjacent notch, at 0.45 of the radius.
    notch_x, notch_y = 0.45 * np.cos(sector), 0.45 * np.sin(sector)
    length = np.hypot(1 - notch_x, notch_y)
    along, across = radius * np.cos(angle) - 1, radius * np.sin(angle)
    outside: Plane = (along * notch_y + across * (1 - notch_x)) / length
    return outside


def _flower(x: Plane, y: Plane) -> Plane:
    petals: Plane = 0.7 + 0.3 * np.cos(5 * np.arctan2(y, x))
    return np.hypot(x, y) - petals


def _checker(x: Plane, y: Plane) -> Plane:
    tiles = np.sin(np.pi * x / 0.6) * np.sin(np.pi * y / 0.6) * 0.25
    return np.maximum(_box(x, y, 0.9, 0.9), tiles)


SHAPES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "disc": lambda x, y: np.hypot(x, y) - 0.9,
    "square": lambda x, y: _box(x, y, 0.75, 0.75),
    "triangle": _triangle,
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.7) - 0.25,
    "cross": lambda x, y: np.minimum(_box(x, y, 1, 0.32), _box(x, y, 0.32, 1)),
    "star": _star,
    "crescent": lambda x, y: np.maximum(np.hypot(x, y) - 0.95, 0.8 - np.hypot(x - 0.5, y)),
    "flower": _flower,
    "bars": lambda x, y: np.maximum(_box(x, y, 0.9, 0.9), 0.16 - np.abs(np.mod(x, 0.7) - 0.35)),
    "checker": _checker,
}
"""Approximate signed distances to shapes of radius 1 around the origin; negative inside."""


class Shapes(Builtin):
    """RGB images of 32x32 pixels, each showing a shape of one of ten classes on a textured ground.

    A row depends only on its split and its number.
    """

    modality: ClassVar[Literal["image", "text"]] = "image"
    class_names: ClassVar[tuple[str, ...]] = tuple(SHAPES)
    sizes: ClassVar[dict[str, int]] = {"train": 2000, "test": 500, "public": 2000}
    drawn: ClassVar[int] = 2000

    def read(self, split: str, numbers: range) -> tuple[Tensor, Tensor]:
        """Images uint8 ``(row, 3, 32, 32)`` and their classes."""
        return _together([_row(0, split, number) for number in numbers])

    def draw(self, key: int, numbers: range) -> tuple[Tensor, Tensor]:
        """As ``read``, of the rows of a key."""
        return _together([_row(key, number) for number in numbers])


def _together(rows: list[tuple[NDArray[np.uint8], int]]) -> tuple[Tensor, Tensor]:
    images, labels = zip(*rows, strict=True)
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    return pixels, torch.tensor(labels, dtype=torch.int64)


@lru_cache(maxsize=8192)  # 25 MB; drawing takes a millisecond
def _row(seed: int, *path: str | int) -> tuple[NDArray[np.uint8], int]:
    """An image and its class; equal calls share the image, which must not be changed in place."""
    rng = seeds.numpy_generator(seed, "shapes", *path)
    label = int(rng.integers(len(SHAPES)))
    return _draw(list(SHAPES.values())[label], rng), label


def _draw(shape: Callable[[Plane, Plane], Plane], rng: np.random.Generator) -> NDArray[np.uint8]:
    """One image ``(height, width, channel)``: background, cast shadow, lit shape and grain."""
    light = rng.uniform(0, 2 * np.pi)
    toward_light = _X * np.cos(light) + _Y * np.sin(light)
    ground, body = _colours(rng)

    scale = rng.uniform(0.42, 0.68)
    centre = rng.uniform(scale - 1, 1 - scale, 2) * 0.8
    turn = rng.uniform(-0.5, 0.5)

    def distance(shift: float) -> Plane:
        """Distance in pixels to the shape, shifted away from the light."""
        dx = _X - centre[0] + shift * np.cos(light)
        dy = _Y - centre[1] + shift * np.sin(light)
        u = (dx * np.cos(turn) + dy * np.sin(turn)) / scale
        v = (dy * np.cos(turn) - dx * np.sin(turn)) / scale
        return shape(u, v) * scale * SIDE / 2

    shade = 1 + 0.3 * toward_light + 0.22 * _texture(rng, 5)
    shade *= 1 - 0.5 * _cover(distance(0.12), 4.0)
    picture = ground * shade[..., None]
    edge = distance(0.0)
    # Darker towards the rim on the far side of the light, as on a round body.
    relief = 1 + 0.25 * toward_light + 0.25 * np.tanh(-edge / 4) - 0.15
    relief += 0.1 * _texture(rng, 9)
    alpha = _cover(edge, 1.2)[..., None]
    picture = (1 - alpha) * picture + alpha * body * relief[..., None]
    picture += rng.normal(0, 0.012, picture.shape)
    pixels: NDArray[np.uint8] = np.round(255 * np.clip(picture, 0, 1)).astype(np.uint8)
    return pixels


def _cover(distance: Plane, width: float) -> Plane:
    """Share of each pixel that is inside; falls from 1 to 0 over ``width`` pixels."""
    return np.clip(0.5 - distance / width, 0, 1)


def _texture(rng: np.random.Generator, frequency: float) -> Plane:
    """Sum of waves in random directions, roughly in [-1, 1]."""
    drawn = [(*rng.normal(0, frequency, 2), rng.uniform(0, 2 * np.pi)) for _ in range(5)]
    across, down, phase = np.array(drawn).T[..., None]
    a, b = across * _AXIS + phase, down * _AXIS
    waves: Plane = np.cos(b).T @ np.sin(a) + np.sin(b).T @ np.cos(a)  # of sin(a + b)
    return waves / 3


def _colours(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two muted RGB colours in [0, 1] that are easy to distinguish."""
    while True:
        colours = rng.uniform(0.08, 0.95, (2, 3))
        # Photographs are rarely saturated, so each colour is moved towards its own grey.
        ground, body = 0.65 * colours + 0.35 * colours.mean(1, keepdims=True)
        if np.abs(ground - body).sum() > 0.75:
            return ground, body
