"""Utility against leakage: one marker a defense, the line of DP-SGD, and the null baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.evidence import Verdict
from experiments.figures import INK, STROKES, Figure, panel
from experiments.findings import OTHER_CLIENT, PRIOR_ONLY, UTILITY, Section
from experiments.labels import strength, title
from experiments.matrix import leaked, null_of, unit_of_main, useful
from experiments.results import named_place, place_of
from experiments.tables import Number, Table
from experiments.tradeoff import DP_SGD

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (5.6, 4.1)


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a defense stands in the picture."""

    defense: str
    utility: float
    leak: Number
    label: str

    @property
    def bar(self) -> tuple[float, float]:
        """How far the interval reaches below and above; nothing where there is none."""
        if self.leak.low is None or self.leak.high is None:
            return 0.0, 0.0
        return self.leak.value - self.leak.low, self.leak.high - self.leak.value


def pictures(section: Section, stem: str) -> list[Figure]:
    """A panel for each setting in which two defenses or more were measured and attacked."""
    found: list[Figure] = []
    for setting in dict.fromkeys(verdict.setting for verdict in section.evidence.verdicts):
        verdicts = [one for one in section.evidence.verdicts if one.setting == setting]
        spots = [spot for one in verdicts if (spot := _spot(section, one))]
        if len(spots) > 1:
            found.append(_picture(section, f"{stem}-{len(found) + 1}", verdicts, spots))
    return found


def _spot(section: Section, verdict: Verdict) -> Spot | None:
    use, _, epsilon = useful(section, verdict.place)
    leak = leaked(section, verdict.place, verdict.strongest)
    if use is None or leak is None:
        return None
    family = [
        other.defense_options
        for other in section.evidence.verdicts
        if (other.setting, other.defense) == (verdict.setting, verdict.defense)
    ]
    label = strength(verdict.defense_options, family)
    if verdict.defense == DP_SGD:
        label = f"ε = {epsilon}" if epsilon else "ε = ∞"
    return Spot(verdict.defense, use.value, leak, label)


def _picture(section: Section, name: str, verdicts: list[Verdict], spots: list[Spot]) -> Figure:
    setting, utility = verdicts[0].setting, title(section.utility_name or "")
    caption = (
        f"{f'{setting}: ' if setting else ''}mean {title(section.main)} of the strongest attack on "
        f"each defense, with its 95 % interval, against {utility} after the last round. The best "
        "defense is at the bottom right."
    )
    heading = f"Utility and leakage{f', {setting}' if setting else ''}"
    floor = _floor(section, verdicts)
    return panel(name, caption, heading, lambda axes: _draw(axes, section, spots, floor), SIZE)


def _floor(section: Section, verdicts: list[Verdict]) -> tuple[float, str] | None:
    """The null baseline, the mean over the defenses."""
    for kind in (PRIOR_ONLY, OTHER_CLIENT):
        floors = [null_of(section, verdict, kind) for verdict in verdicts]
        known = [floor.value for floor in floors if floor]
        if known:
            return sum(known) / len(known), f"null: {title(kind)}"
    return None


def _draw(axes: Axes, section: Section, spots: list[Spot], floor: tuple[float, str] | None) -> None:
    families: dict[str, list[Spot]] = {}
    for spot in spots:
        families.setdefault(spot.defense, []).append(spot)
    for number, (defense, members) in enumerate(families.items()):
        colour, marker = STROKES[number % len(STROKES)]
        members.sort(key=lambda spot: spot.utility)
        axes.errorbar(
            [spot.utility for spot in members],
            [spot.leak.value for spot in members],
            yerr=list(zip(*(spot.bar for spot in members), strict=True)),
            color=colour,
            marker=marker,
            linestyle="-" if defense == DP_SGD else "none",
            linewidth=1.1,
            elinewidth=0.9,
            capsize=2,
            markersize=6,
            label=title(defense),
        )
        for spot in members:
            at, offset = (spot.utility, spot.leak.value), (6, 4)
            axes.annotate(
                spot.label, at, offset, textcoords="offset points", fontsize=7.5, color=colour
            )
    if floor is not None:
        axes.axhline(floor[0], color=INK, alpha=0.55, ls=":", lw=1.3, label=floor[1])
    if section.utility_name and UTILITY[section.utility_name] == "lower":
        axes.invert_xaxis()
    unit = unit_of_main(section)
    if unit == "1":
        axes.set_ylim(-0.04, 1.04)
    axes.margins(x=0.16)
    axes.set_xlabel(f"{title(section.utility_name or '')} after the last round")
    axes.set_ylabel(f"{title(section.main)}{'' if unit == '1' else f' ({unit})'}")
    axes.grid(color=INK, alpha=0.12, linewidth=0.6)


def tradeoff_tables(section: Section) -> tuple[Table, Table]:
    """Leakage at a stated loss of utility, and beside DP-SGD of equal utility."""
    where, unit, evidence = place_of(section), unit_of_main(section), section.evidence
    loss = f"{100 * evidence.at_loss[0].loss:g} %" if evidence.at_loss else "a stated share"
    return (
        Table(
            "at-loss",
            f"Leakage of each family of defenses where it costs {loss} of the utility without a "
            f"defense: mean {title(section.main)} of the strongest attack, interpolated linearly "
            f"between members of the family; utility counts as known: {where}.",
            ("setting", "defense", "leakage", "victims", "how"),
            tuple(
                (
                    *(one.setting, title(one.defense)),
                    Number(one.leakage.mean, unit, one.leakage.low, one.leakage.high)
                    if one.leakage
                    else None,
                    one.leakage.n if one.leakage else None,
                    one.how,
                )
                for one in evidence.at_loss
            ),
        ),
        Table(
            "equal-utility",
            "Each defense beside DP-SGD of the same utility, interpolated along the line of "
            "DP-SGD, whose weak end is no defense: each under the strongest attack on it, on the "
            f"same victims. Above 0, DP-SGD leaks less: {where}.",
            ("setting", "defense", "leakage", "DP-SGD", "defense less DP-SGD", "how"),
            tuple(
                (
                    *named_place(one.place),
                    Number(one.leakage, unit),
                    None if one.dp_sgd is None else Number(one.dp_sgd, unit),
                    Number(one.difference.mean, unit, one.difference.low, one.difference.high)
                    if one.difference
                    else None,
                    one.how,
                )
                for one in evidence.equal_utility
            ),
        ),
    )
