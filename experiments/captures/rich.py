"""Guesses as HTML, for notebooks and pages."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from experiments.report.gallery import data_uri, mark
from experiments.stages.png import png
from fedsim.visible import escaped

_MARKS = {"run": "background:#a5d6a7;color:#000", "word": "background:#fff59d;color:#000"}
"""Legible on dark pages, too."""
_PIXELS = 96
"""Least height of a picture on the page."""


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells that are HTML already."""
    cells = ("".join(f"<td style='text-align:left'>{cell}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def grid(images: Tensor, captions: Sequence[str]) -> str:
    """Pictures side by side, each over its caption."""
    said = [*captions, *[""] * (len(images) - len(captions))]
    return table([[picture(image) for image in images], [escaped(text) for text in said]])


def picture(image: Tensor) -> str:
    """An image ``(channel, height, width)`` in [0, 1], enlarged without smoothing."""
    style = f"image-rendering:pixelated;height:{max(_PIXELS, image.shape[1])}px"
    return f"<img style='{style}' src='{data_uri(png(image))}'>"


def diff(truth: str, guess: str) -> str:
    """The private text: green what the guess holds in order, yellow its single words."""
    return " ".join(
        f"<span style='{_MARKS.get(kind, '')}'>{escaped(text)}</span>"
        for kind, text in mark(truth.split(), guess.split())
    )
