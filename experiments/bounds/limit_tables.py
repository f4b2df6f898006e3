"""What bounds any attack on a run, as ``limits.json`` keeps it, and the tables made of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median, median_low
from typing import TypeAlias

from experiments.bounds.light import Light
from experiments.reporting.defense_names import defense_name
from experiments.reporting.labels import title
from experiments.reporting.paired import scored
from experiments.reporting.results import told_apart
from experiments.reporting.tables import Number, Table, Value
from experiments.reporting.verdicts import is_attack
from fedsim.files import Record
from fedsim.records import ScoreRow

Labels: TypeAlias = Mapping[str, str]
"""Cell -> its setting."""
WHO = ("setting", "defense")


class Limit(Record):
    """Something that bounds the attacks on one cell; ``run`` is the name of its experiment."""

    run: str
    cell: str
    defense: str
    defense_options: str

    def who(self, labels: Labels) -> tuple[str, str]:
        """The values of ``WHO``."""
        return labels[self.cell], defense_name(self.defense, self.defense_options)


class RankLimit(Limit):
    """Whether one exact attack can work, by what replies hold."""

    light: Light


class SuccessLimit(Limit):
    """The largest chance to guess a captured example right that differential privacy leaves.

    Attributes:
        unit: what is hidden: an example, or all of a client's update.
        noise: standard deviation in units of what one such unit can change in one sum; the least
            of any client.
        guess: what is guessed of one example.
        without: chance to be right without any update.
        one: with the update of the round in which the example was captured, at most.
        all: with those of all rounds, at most.
    """

    unit: str
    noise: float
    guess: str
    without: float
    one: float
    all: float
    rounds: int


class CeilingLimit(Limit):
    """The local PSNR ceiling of one capture of one image.

    Attributes:
        std: of the noise on a coordinate of the gradient.
        psnr: of the least mean squared error, in dB.
        prior: what was taken to be known of images before any gradient.
    """

    round: int
    client: int
    std: float
    psnr: float
    prior: str


class LimitsRecord(Record):
    """``limits.json``."""

    ranks: tuple[RankLimit, ...]
    successes: tuple[SuccessLimit, ...]
    ceilings: tuple[CeilingLimit, ...]


def rank_table(limits: Iterable[RankLimit], labels: Labels) -> Table:
    """One row a cell and exact attack that fits its modality."""
    return Table(
        "limits-ranks",
        "Whether exact attacks can work, before any is run: green where nothing is in the way, "
        "amber where they work on some replies or in part, red where they cannot. Counts of the "
        "first replies, at the first weights.",
        (*WHO, "attack", "light", "counted", "median", "largest", "limit", "why"),
        tuple(
            (
                *one.who(labels),
                title(light.attack),
                light.colour,
                light.what,
                median_low(light.counts),
                max(light.counts),
                light.limit,
                light.reason,
            )
            for one in limits
            for light in [one.light]
        ),
    )


def success_table(limits: Iterable[SuccessLimit], labels: Labels) -> Table:
    """One row a cell with differential privacy and thing to guess."""
    return Table(
        "limits-success",
        "The largest chance to guess right about an example of a captured round "
        "(reconstruction robustness, Balle et al. 2022, Hayes et al. 2023): without any update, "
        "with the one of that round, and with those of all rounds, into the others of which the "
        "example is drawn like any row of its client. That it was used in the captured round "
        "is given, as it is for all that is scored, so sampling hides nothing there. It "
        "holds for every attack whose chance without an update is the one given, and for every "
        "client. Noise is that of the client with the least, in units of the clipping norm, or "
        "of twice that where two updates are compared.",
        (*WHO, "unit", "noise", "guess", "without", "one round", "all rounds", "rounds"),
        tuple(
            (
                *one.who(labels),
                one.unit,
                Number(one.noise),
                one.guess,
                *(Number(chance) for chance in (one.without, one.one, one.all)),
                one.rounds,
            )
            for one in limits
        ),
    )


def ceiling_table(
    limits: Iterable[CeilingLimit],
    labels: Labels,
    scores: Sequence[ScoreRow],
) -> Table:
    """One row a cell of images with Gaussian noise alone, beside the best attack on the same.

    Args:
        limits: of some captures of each cell.
        labels: cell -> its setting.
        scores: of the run; empty before the score stage.
    """
    cells: defaultdict[str, list[CeilingLimit]] = defaultdict(list)
    for one in limits:
        cells[one.cell].append(one)
    return Table(
        "limits-ceilings",
        "PSNR of the least mean squared error from one noisy gradient (van Trees inequality, "
        "linearised at the true image): a local ceiling, not a proof. The class is given; that "
        "pixels lie in [0, 1] is not used. Beside it the attack with the highest median PSNR on "
        "the same captures.",
        (
            *(*WHO, "noise std", "images", "median", "lowest", "highest"),
            *("best attack", "its median", "prior"),
        ),
        tuple(_ceiling_row(group, labels, scores) for group in cells.values()),
    )


def _ceiling_row(
    group: Sequence[CeilingLimit], labels: Labels, rows: Iterable[ScoreRow]
) -> tuple[Value, ...]:
    values, first = [one.psnr for one in group], group[0]
    attack, reached = _best_attack(group, rows)
    return (
        *first.who(labels),
        Number(first.std),
        len(values),
        *(Number(value, "dB") for value in (median(values), min(values), max(values))),
        attack,
        None if reached is None else Number(reached, "dB"),
        first.prior,
    )


def _best_attack(
    group: Sequence[CeilingLimit], rows: Iterable[ScoreRow]
) -> tuple[str, float | None]:
    """Among the attacks that have a value for each of these captures."""
    captures = {(one.client, one.round) for one in group}
    cell = group[0].cell
    mine = (row for row in rows if row.cell == cell)
    attacks = list(filter(is_attack, scored(mine, {cell: cell}, "psnr")))
    found = [
        (median(values), told_apart(one.attacker, (other.attacker for other in attacks)))
        for one in attacks
        for values in [[v for victim, v in one.values.items() if victim[1:3] in captures]]
        if len(values) == len(captures)
    ]
    best, name = max(found, default=(None, ""))
    return name, best
