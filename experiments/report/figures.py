"""Shared style of the figures: ink, colours, legend, and export as SVG and PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from experiments.analysis.keys import DefenseInSetting
from fedsim.visible import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from numpy import float64
    from numpy.typing import NDArray

    Decibels: TypeAlias = NDArray[float64]

INK = "#1b1b1f"
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#6a3d9a")
"""Of families of defenses, after Okabe and Ito; no defense is drawn in ink."""
MARKERS = "osD^vPX"
EXACT = 50.0
"""Decibels; above, an image looks the same, and 100 is the cap of PSNR. At 25 the bend would cut
what is recognisable, at 100 there would be none."""
LAST = ("blind guess: ", "Pareto front")
"""Prefixes of legend entries listed after the defenses."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
Size: TypeAlias = tuple[float, float]
"""Width and height in inches."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture of the page.

    Attributes:
        name: file name without its ending.
        caption: what it shows, in words.
        svg: an ``<svg>`` element; its ink is ``INK``, so that a page can set another.
        width: in inches, at which its text is as large as that of the page's tables.
    """

    name: str
    caption: str
    svg: str
    png: bytes
    width: float


@dataclass(frozen=True, slots=True)
class Stroke:
    """How a defense is drawn: the hue is its family's, shade and marker are its own."""

    colour: str
    marker: str


def strokes(places: Sequence[DefenseInSetting]) -> dict[DefenseInSetting, Stroke]:
    """A stroke for each place, in their order; a family goes from light to dark."""
    by_place: dict[DefenseInSetting, Stroke] = {}
    families = list(dict.fromkeys(place[1] for place in places if place[1] != "none"))
    for setting in dict.fromkeys(place[0] for place in places):
        for defense in dict.fromkeys(place[1] for place in places if place[0] == setting):
            members = [place for place in places if place[:2] == (setting, defense)]
            for number, place in enumerate(members):
                marker = MARKERS[number % len(MARKERS)]
                shade = number / (len(members) - 1) if len(members) > 1 else 0.5
                by_place[place] = Stroke(_shaded(family_colour(defense, families), shade), marker)
    return by_place


def family_colour(defense: str, families: Sequence[str]) -> str:
    """The hue of a family; ink for no defense."""
    return INK if defense == "none" else COLOURS[families.index(defense) % len(COLOURS)]


def _shaded(colour: str, shade: float) -> str:
    """Towards white for 0, as it is in the middle, towards black for 1."""
    from matplotlib.colors import to_hex, to_rgb

    end, weight = (1.0, 0.9 * (0.5 - shade)) if shade < 0.5 else (0.0, 0.8 * (shade - 0.5))
    red, green, blue = ((1 - weight) * part + weight * end for part in to_rgb(colour))
    return to_hex((red, green, blue))


def figure(name: str, caption: str, draw: Callable[[Canvas], None], size: Size) -> Figure:
    """A figure of any number of axes; equal drawings give equal bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    svg, png = io.StringIO(), io.BytesIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        canvas = Canvas(figsize=size, layout="constrained")
        draw(canvas)
        canvas.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        canvas.set_layout_engine("none")  # all stands where the drawing of lines has it
        canvas.savefig(png, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", svg.getvalue(), flags=re.DOTALL)
    return Figure(name, caption, visible(text[text.index("<svg") :]), png.getvalue(), size[0])


def together(drawings: Sequence[tuple[Callable[[Any], None], Size]]) -> Canvas:
    """Drawings below one another, as a figure that matplotlib goes on with."""
    import matplotlib as mpl
    from matplotlib import pyplot  # by which notebooks learn to show figures

    heights = [height for _, (_, height) in drawings]
    with mpl.rc_context(STYLE):
        size = (max(width for _, (width, _) in drawings), sum(heights))
        canvas = pyplot.figure(figsize=size, layout="constrained")
        parts = canvas.subfigures(len(drawings), squeeze=False, height_ratios=heights)
        for part, (draw, _) in zip(parts[:, 0], drawings, strict=True):
            draw(part)
    pyplot.close(canvas)  # else a notebook shows it twice
    return canvas


def panel(
    name: str,
    caption: str,
    heading: str,
    draw: Callable[[Axes], None],
    size: Size = (4.2, 3.5),
) -> Figure:
    """A figure of one pair of axes, its legend below."""

    def fill(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        draw(axes)
        head(axes, heading)
        legend_below(canvas, size[0])

    return figure(name, caption, fill, size)


def frame_shares(axes: Axes, margin: float = 0.04) -> None:
    """Show 0 to 1, as panels of one page compare, and what is below: MCC and SSIM may be."""
    axes.set_ylim(min(0.0, float(axes.dataLim.y0)) - margin, 1 + margin)


def frame_decibels(axes: Axes) -> None:
    """Give the part above ``EXACT`` a tenth of its height, so that the cap does not flatten all."""
    import numpy as np

    if axes.get_ylim()[1] <= EXACT:
        return

    def narrow(values: Decibels) -> Decibels:
        return np.where(values > EXACT, EXACT + (values - EXACT) / 10, values)

    def widen(values: Decibels) -> Decibels:
        return np.where(values > EXACT, EXACT + (values - EXACT) * 10, values)

    low = min(axes.get_ylim()[0], 0.0)
    axes.set_yscale("function", functions=(narrow, widen))
    axes.set_ylim(low, 110)
    axes.set_yticks([0, 10, 20, 30, 40, 50, 100], [*["0", "10", "20", "30", "40", "50"], "exact"])
    axes.axhspan(EXACT, 110, color=INK, alpha=0.05, linewidth=0)


def by_round(axes: Axes, label: str) -> None:
    """Rounds below, and what is measured beside them."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("round")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)


def head(axes: Axes, heading: str) -> None:
    """The title of a panel."""
    axes.set_title(heading, fontsize=10, fontweight="bold", loc="left")


def legend_below(canvas: Canvas, width: float) -> None:
    """One legend for all axes, each entry once, in as many columns as fit."""
    longest = max(map(len, _entries(canvas)), default=1)
    _legend(canvas, "outside lower center", max(1, int(width / (0.55 + 0.075 * longest))))


def legend_beside(canvas: Canvas) -> None:
    """One legend for all axes at their right, each entry once."""
    _legend(canvas, "outside right upper", 1)


def _legend(
    canvas: Canvas, place: Literal["outside lower center", "outside right upper"], columns: int
) -> None:
    entries = _entries(canvas)
    canvas.legend(
        list(entries.values()),
        list(entries),
        loc=place,
        ncols=max(1, min(columns, len(entries))),
        frameon=False,
        fontsize=8.5,
        handlelength=2.4,
    )


def _entries(canvas: Canvas) -> dict[str, Any]:
    pairs = [axes.get_legend_handles_labels() for axes in canvas.axes]
    entries = {
        label: handle
        for handles, labels in pairs
        for handle, label in zip(handles, labels, strict=True)
    }
    return dict(sorted(entries.items(), key=lambda entry: entry[0].startswith(LAST)))
