"""How the pictures that a client trained on differ from those of its data loader."""

from collections.abc import Iterator

from torch import Tensor

from experiments.stages.coverage import EXACT_PSNR
from experiments.wording.catalogue import sentence
from experiments.wording.prose import listed

_SHIFT = 8
"""Most pixels by which a crop is looked for. Half of it misses crops of 64 pixels, twice of it
takes four times as long and names no usual crop more."""

_VARIED = 100
"""Times the error that a picture varies by that is told from others in spite of any scale. Half
and twice of it name the same 300 small pictures (normalised; of others; of a colour with grain)."""


def altered(certified: Tensor, private: Tensor, shape: tuple[int, ...]) -> str:
    """What certified pictures are that are none of the private ones.

    Args:
        certified: ``(picture, channel, height, width)`` in [0, 1].
        private: of the loader, in the same form.
        shape: of an input, as its owner has it; rows of a table have no flips.
    """
    ways: list[str] = []
    for picture in certified:
        views = _ways(picture) if len(shape) > 1 else iter(())
        named = (_named(name, view, private[at]) for name, view, at in views)
        way = next(filter(None, named), "")
        if way and way not in ways:
            ways.append(way)
    if not ways:
        return sentence("truth.changed", count=len(certified))
    return sentence("truth.changed_by", count=len(certified), ways=listed(ways))


def _named(name: str, view: Tensor, private: Tensor) -> str:
    """The name if a private picture is so, or with each channel scaled and shifted; else empty."""
    exact, flat = 10 ** (-EXACT_PSNR / 10), private.flatten(2)
    if ((flat - view.flatten(1)) ** 2).mean((1, 2)).min() <= exact:
        return name
    seen, flat = (each - each.mean(-1, keepdim=True) for each in (view.flatten(1), flat))
    scale = (seen * flat).sum(-1, keepdim=True) / (seen**2).sum(-1, keepdim=True).clamp(min=1e-9)
    alike = ((flat - scale * seen) ** 2).mean((1, 2)) <= exact
    varied = (flat**2).mean((1, 2)) > _VARIED * exact
    return f"{name} and normalised".removeprefix(" and ") if (alike & varied).any() else ""


def _ways(picture: Tensor) -> Iterator[tuple[str, Tensor, tuple[slice, ...]]]:
    """Name of an alteration, the part of a picture that shows it, and where that lies."""
    whole = (slice(None),)
    yield "", picture, whole
    yield "flipped left to right", picture.flip(-1), whole
    yield "flipped upside down", picture.flip(-2), whole
    yield "turned by 180 degrees", picture.flip(-1, -2), whole
    if picture.shape[-1] == picture.shape[-2]:
        for turns in (1, 3):
            yield f"turned by {90 * turns} degrees", picture.rot90(turns, (-2, -1)), whole
        for turns in (0, 2):
            yield "transposed", picture.transpose(-1, -2).rot90(turns, (-2, -1)), whole
    for down in range(-_SHIFT, _SHIFT + 1):
        for right in range(-_SHIFT, _SHIFT + 1):
            rows, there = _overlap(down, picture.shape[-2])
            columns, beside = _overlap(right, picture.shape[-1])
            if (rows.stop - rows.start) * (columns.stop - columns.start) * 2 < picture[0].numel():
                continue
            at = (slice(None), slice(None), there, beside)
            for name, view in (("", picture), (" and flipped", picture.flip(-1))):
                yield (
                    f"shifted by {down}, {right} pixels{name}",
                    view[..., rows, columns],
                    at,
                )


def _overlap(shift: int, size: int) -> tuple[slice, slice]:
    """Where a shifted side lies in the picture, and in the one that it is of."""
    return slice(max(0, shift), size + min(0, shift)), slice(max(0, -shift), size - max(0, shift))
