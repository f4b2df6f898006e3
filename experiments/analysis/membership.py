"""Membership in numbers, by defense, attack, control and round."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from experiments.analysis.keys import VictimKey
from experiments.analysis.paired import Values, difference, estimate
from experiments.analysis.statistics import Estimate
from experiments.wording.names import defense_name, show, title, told_apart
from fedsim.config.cell import CellConfig
from fedsim.records import OTHER_CLIENT, SECOND_CLIENT, AttackKey, ScoreRow
from fedsim.store.files import Record

METRICS = {
    "membership_auc": "AUC",
    "membership_tpr_1": "TPR at FPR 1 %",
    "membership_tpr_01": "TPR at FPR 0.1 %",
}
"""Metric -> its printed name."""
_OTHER = title(OTHER_CLIENT)
SEEN = "the update"
"""What the attack itself was given, as opposed to the controls."""
_CHANCE = {"membership_auc": 0.5, "membership_tpr_1": 0.01, "membership_tpr_01": 0.001}
"""Metric -> its mean for a guess. Members leak if one of the three is surely above a guess."""
_ROUTES = 3
"""Ways of being above a guess, see ``_tells``, which share the error."""


class Finding(Record):
    """One metric of one attack under one defense, with its 95 % interval over clients.

    Attributes:
        round: None for all rounds together.
        n: members.
        lost: those of them whose job failed or was cut short; without scores they count as a
            blind guess.
        tells: whether an AUC or TPR lies above that of a guess, at an error of 2.5 % that the
            three share with all attacks on the defense, see ``_tells``.
    """

    setting: str
    defense: str
    attack: str
    control: str
    round: int | None
    metric: str
    n: int
    lost: int
    clients: int
    mean: float
    low: float | None
    high: float | None
    tells: bool

    @property
    def number(self) -> str:
        """The mean with its interval."""
        interval = "" if self.low is None else f" [{show(self.low, '1')}, {show(self.high, '1')}]"
        return f"{show(self.mean, '1')}{interval}"

    @property
    def cut(self) -> str:
        """How many are of jobs that failed or were cut short, if any."""
        return f", {self.lost} of jobs that failed or were cut short" if self.lost else ""

    def text(self) -> str:
        """One line."""
        where = f"{self.setting}; " if self.setting else ""
        when = "" if self.round is None else f"round {self.round}; "
        return (
            f"{where}{self.defense}; {self.attack}; {when}{self.control}: "
            f"{METRICS[self.metric]} {self.number}, {self.n} members{self.cut}"
        )


class _Group(NamedTuple):
    setting: str
    defense: str
    attack: str
    control: str
    round: int | None
    metric: str


def inferred(
    rows: Sequence[ScoreRow], settings: Mapping[str, str], cells: Mapping[str, CellConfig]
) -> list[Finding]:
    """Means over the rows of ``membership.parquet``, of clients only.

    Failed jobs count as guessing at random, and those that refused not at all. Where several rounds
    were captured, each round follows all rounds together.

    Args:
        rows: those of cells in ``settings``.
        settings: cell -> its setting.
        cells: by name; how many fresh rows a cell has decides what a guess may reach.
    """
    inferring = [
        row for row in tried(rows) if row.value is not None and row.control != SECOND_CLIENT
    ]
    attacks = {row.attack_key for row in inferring}
    names = labels(rows)
    groups: dict[_Group, list[ScoreRow]] = defaultdict(list)
    for row in inferring:
        control = SEEN if row.control == "none" else title(row.control)
        defense = defense_name(row.defense, row.defense_options)
        for round_ in (None, row.round):
            setting, name = settings[row.cell], names[row.attack_key]
            groups[_Group(setting, defense, name, control, round_, row.metric)].append(row)
    rounds: dict[str, set[int]] = defaultdict(set)
    for row in inferring:
        rounds[settings[row.cell]].add(row.round)
    return [
        _finding(
            group, group_rows, groups.get(group._replace(control=_OTHER), ()), cells, len(attacks)
        )
        for group, group_rows in groups.items()
        if group.round is None or len(rounds[group.setting]) > 1
    ]


def tried(rows: Iterable[ScoreRow]) -> list[ScoreRow]:
    """The rows of clients, not of probes."""
    return [row for row in rows if row.probe == "none"]


def labels(rows: Iterable[ScoreRow]) -> dict[AttackKey, str]:
    """Attack -> its printed name, which tells it from the others."""
    attacks = {row.attack_key for row in tried(rows)}
    return {attack: told_apart(attack, attacks) for attack in attacks}


def _finding(
    group: _Group,
    rows: Sequence[ScoreRow],
    other: Sequence[ScoreRow],
    cells: Mapping[str, CellConfig],
    attacks: int,
) -> Finding:
    values = _values(rows)
    known = estimate(values)
    fresh = min(cells[row.cell].candidates.fresh for row in rows)
    comparisons = attacks * len(_CHANCE) * _ROUTES
    return Finding(
        **group._asdict(),
        n=known.n,
        lost=sum(row.status != "done" for row in rows),
        clients=known.clusters,
        mean=known.mean,
        low=known.low,
        high=known.high,
        tells=group.metric in _CHANCE
        and _tells(group.metric, values, _values(other), fresh, comparisons),
    )


def _values(rows: Sequence[ScoreRow]) -> Values:
    return {
        VictimKey(
            row.seed, row.client, row.round, row.example, -1 if row.row is None else row.row
        ): row.value
        for row in rows
        if row.value is not None
    }


def _tells(
    metric: str,
    values: Values,
    other: Values,
    fresh: int,
    comparisons: int,
) -> bool:
    """Whether members are told for sure, in one of three ways.

    The update tells them: they are ranked above chance, and higher than by another client's update,
    paired. Or the weights do, as after some rounds of training: they are ranked above what a blind
    attack can reach. All members are ranked among the same ``fresh`` rows, and where these happen
    to be ranked low by an attack that reads no update, all members are told together, however many
    clients there are. That AUC is a mean of F uniform numbers, and the share of the fresh rows
    that a threshold at rate r of F rows really passes has the distribution
    Beta(floor(r (F + 1)), F + 1 - floor(r (F + 1))). Or clients are too few or too much alike for
    that interval, as where all members are ranked first: then by Mann and Whitney's rank test of
    one member a client among the fresh rows, whose AUC scatters more than that of all its members.
    """
    whole, error = estimate(values, 0.05 / comparisons), 0.025 / comparisons
    if metric == "membership_auc" and by_ranks(whole, fresh) <= error:
        return True
    low = whole.low
    if low is None or low <= _CHANCE[metric]:
        return False
    between = difference(values, other, comparisons=comparisons)
    if between is not None and between.low is not None and between.low > 0:
        return True
    return low > _by_chance(metric, fresh, error)


def by_ranks(whole: Estimate, fresh: int) -> float:
    """Probability of such an AUC or a higher one, if each client had one member ranked by chance.

    Exact for up to eight clients, beyond by the normal approximation.
    """
    from scipy.stats import mannwhitneyu

    if not fresh:
        return 1.0
    below, more = divmod(math.floor(whole.mean * whole.clusters * fresh + 1e-9), whole.clusters)
    # Apart, as ties would shrink the approximation's variance.
    places = np.arange(1, whole.clusters + 1) / (whole.clusters + 1)
    members = below + (np.arange(whole.clusters) < more) + places
    ranks = np.arange(1.0, fresh + 1)
    exact: Literal["exact", "asymptotic"] = "exact" if whole.clusters <= 8 else "asymptotic"
    test = mannwhitneyu(members, ranks, alternative="greater", method=exact)
    return float(test.pvalue)


def _by_chance(metric: str, fresh: int, error: float) -> float:
    """What a blind attack exceeds with this probability, over the draw of the fresh rows."""
    from scipy.stats import beta, norm

    if not fresh:
        return 1.0
    if metric == "membership_auc":
        return float(0.5 + norm.ppf(1 - error) / math.sqrt(12 * fresh))
    passing = math.floor(_CHANCE[metric] * (fresh + 1) + 1e-9)
    return float(beta.ppf(1 - error, passing, fresh + 1 - passing)) if passing else 1.0
