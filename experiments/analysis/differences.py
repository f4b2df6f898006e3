"""Two runs compared, or the attacks of one: which numbers moved beyond their intervals."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeAlias

import pandas as pd

from experiments.analysis.findings import HEADLINE, Findings, TaskFindings
from experiments.analysis.frames import score_frame
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.paired import Scored, Values, difference, scored
from experiments.analysis.summary import SectionKey
from experiments.wording.names import defense_name, differing, show, spoken, title, told_apart
from fedsim.api.run import RunFolder, to_report
from fedsim.config.build import suggest
from fedsim.errors import ConfigError, StoreError
from fedsim.store.files import Data, read_record

_ROUNDING = 1e-9
Pair: TypeAlias = tuple[Scored, Scored]


class Change(Data):
    """One number in two runs, or of two attacks of one run.

    Attributes:
        what: task, setting, defense, attack and metric.
        before: mean in the first run, or of the first attack.
        after: mean in the second one.
        low: lower end of the 95 % interval of the difference on the same examples, with the error
            shared by all numbers of attacks (Bonferroni); None if there is none.
        high: upper end.
        paired: number of examples, or of seeds for utility, that are the same in both runs.
    """

    what: str
    before: float
    after: float
    low: float | None
    high: float | None
    paired: int

    @property
    def moved(self) -> bool | None:
        """Whether the interval excludes 0; None without one."""
        if self.low is None or self.high is None:
            return None
        return self.low > _ROUNDING or self.high < -_ROUNDING

    @property
    def differs(self) -> bool:
        """Whether the two means are not the same."""
        return abs(self.after - self.before) > _ROUNDING

    def text(self) -> str:
        """As one line."""
        said = f"{self.what}: {show(self.before)} to {show(self.after)}"
        ends = "" if self.low is None else f" [{show(self.low)}, {show(self.high)}]"
        whose = f"{self.paired} pairs" if self.paired else "unpaired"
        return f"{said}, {show(self.after - self.before)}{ends}, {whose}"


class Comparison(Data):
    """What differs between two runs, or between the attacks of one.

    Attributes:
        changes: every number that both have.
        missing: tasks, defenses and attacks that only one of them has, in words.
        verdicts: those that are not the same in both runs, in words.
    """

    changes: tuple[Change, ...]
    missing: tuple[str, ...]
    verdicts: tuple[str, ...] = ()

    @property
    def moved(self) -> bool:
        """Whether a verdict changed, or a number beyond its interval."""
        return bool(self.verdicts) or any(change.moved for change in self.changes)

    def text(self, *, every: bool = False) -> str:
        """The numbers that moved or changed without an interval, or all, and how many there are."""
        counts = Counter(change.moved for change in self.changes)
        changed = [
            number
            for number in self.changes
            if number.moved or (number.moved is None and number.differs)
        ]
        shown = [change.text() for change in (self.changes if every else changed)]
        shown.append(f"{counts[True]} of {len(self.changes)} numbers differ beyond their intervals")
        if counts[None]:
            shown[-1] += (
                f"; {counts[None]} have no interval (other examples, too few clients, or one seed)"
            )
        return "\n".join([*self.verdicts, *shown, *self.missing])


class Side(NamedTuple):
    """A section of one run.

    Attributes:
        scores: see ``score_frame``.
    """

    findings: TaskFindings
    scores: pd.DataFrame


def compare(before: Path, after: Path) -> Comparison:
    """Compare two reported runs, with intervals where both attacked the same private examples.

    Raises:
        StoreError: a run has no report, or they have nothing in common.
    """
    sides = [sections(run) for run in (before, after)]
    shared = [key for key in sides[0] if key in sides[1]]
    if not shared:
        raise StoreError(f"{before} and {after}: have no task, data set and model in common.")
    missing = [
        f"only in {run}: {', '.join(key)}"
        for run, by_section in ((before, sides[0]), (after, sides[1]))
        for key in by_section
        if key not in shared
    ]
    pairs: list[tuple[str, Pair, bool]] = []
    utility: list[Change] = []
    verdicts: list[str] = []
    for key in shared:
        earlier, other = sides[0][key], sides[1][key]
        head = f"{key.dataset}, {key.model}: " if len(shared) > 1 else ""
        same = set(earlier.scores.split) == set(other.scores.split)
        for metric in HEADLINE[earlier.findings.modality]:
            scored_sides = [attacks_of(side.scores, metric) for side in (earlier, other)]
            both = _matched(*scored_sides)
            pairs += [(f"{head}{_named(pair, metric)}", pair, same) for pair in both]
            if metric == earlier.findings.main:
                missing += _unmatched(before, scored_sides[0], {id(pair[0]) for pair in both}, head)
                missing += _unmatched(after, scored_sides[1], {id(pair[1]) for pair in both}, head)
        utility += _utility(earlier.findings, other.findings, head)
        verdicts += _verdicts(earlier.findings, other.findings, head)
    scores = [_change(what, pair, same, len(pairs)) for what, pair, same in pairs]
    changes = (*scores, *utility)
    return Comparison(changes=changes, missing=tuple(missing), verdicts=tuple(verdicts))


def compare_attacks(run: Path, names: Collection[str] = ()) -> Comparison:
    """Compare the attacks of a reported run pair by pair, on the same private examples.

    Args:
        run: its folder.
        names: of the attacks to compare, as in the experiment; all if there are none.

    Raises:
        ConfigError: no attack of that name was scored.
        StoreError: the run has no report, or no two such attacks for one defense.
    """
    pairs: list[tuple[str, Pair]] = []
    sides = sections(run)
    known = sorted({str(name) for side in sides.values() for name in side.scores.attack})
    if unknown := sorted({*names} - {*known}):
        raise ConfigError(
            f"--attack {unknown[0]!r}: no such attack was scored. {suggest(unknown[0], known)}"
        )
    for key, side in sides.items():
        head = f"{key.dataset}, {key.model}: " if len(sides) > 1 else ""
        for metric in HEADLINE[side.findings.modality]:
            attacks = attacks_of(side.scores, metric)
            keys = [attack.attacker for attack in attacks]
            for pair in combinations(attacks, 2):
                asked = not names or all(side.attacker.attack in names for side in pair)
                if asked and pair[0].place == pair[1].place:
                    first, second = (told_apart(side.attacker, keys) for side in pair)
                    words = (*_where(pair[0].place), f"{first} to {second}", title(metric))
                    pairs.append((head + ", ".join(words), pair))
    if not pairs:
        which = f" of {', '.join(sorted(names))}" if names else ""
        others = [name for name in known if name not in names]
        more = f" Name another: {', '.join(others)}." if names and others else ""
        raise StoreError(f"{run}: no two attacks{which} were scored under the same defense.{more}")
    changes = tuple(_change(what, pair, True, len(pairs)) for what, pair in pairs)
    return Comparison(changes=changes, missing=())


def sections(run: Path, findings: Findings | None = None) -> dict[SectionKey, Side]:
    """The sections of a run, as these findings judge it or else its report.

    Raises:
        StoreError: it has no report.
    """
    if findings is None and not (run / "summary.json").exists():
        raise StoreError(f"{run}: has no report. {to_report(run)}")
    rows, sides = RunFolder(run).scores, {}
    for section in (findings or read_record(run / "summary.json", Findings)).sections:
        labels = {cell: place.setting for cell, place in section.by_cell.items()}
        frame = score_frame((row for row in rows if row.cell in labels), labels)
        key = SectionKey(section.task, section.dataset, section.model, section.protocol)
        sides[key] = Side(section, frame)
    return sides


def attacks_of(scores: pd.DataFrame, metric: str) -> list[Scored]:
    """What attacks got, and ``prior_only``; without controls."""
    return [attack for attack in scored(scores, metric) if attack.control == "none"]


def _matched(before: Sequence[Scored], after: Sequence[Scored]) -> list[Pair]:
    """The same attack under the same defense; its options may differ if it is the only one."""

    def loose(attack: Scored) -> tuple[object, ...]:
        return attack.place, attack.attacker.attack, attack.attacker.adaptive

    counts = [Counter(map(loose, side)) for side in (before, after)]

    def key(attack: Scored) -> tuple[object, ...]:
        alone = all(count[loose(attack)] <= 1 for count in counts)
        return loose(attack) if alone else (attack.place, attack.attacker)

    known = {key(attack): attack for attack in after}
    return [(attack, known[key(attack)]) for attack in before if key(attack) in known]


def _unmatched(run: Path, attacks: Sequence[Scored], matched: set[int], head: str) -> Iterator[str]:
    for attack in attacks:
        if id(attack) not in matched:
            yield f"only in {run}: {head}{_called(attack)}"


def _called(attack: Scored, note: str = "") -> str:
    adaptive = ["adaptive"] if attack.attacker.adaptive else []
    words = [*_where(attack.place), title(attack.attacker.attack), *adaptive, note]
    return ", ".join(filter(None, words))


def _where(place: DefenseInSetting) -> list[str]:
    return list(filter(None, (place.setting, _defense(place))))


def _defense(place: DefenseInSetting) -> str:
    return spoken(defense_name(place.defense, place.defense_options))


def _named(pair: Pair, metric: str) -> str:
    old, new = (attack.attacker.attack_options for attack in pair)
    note = f"{differing(old, [new])} and {differing(new, [old])}" if old != new else ""
    return f"{_called(pair[0], note)}, {title(metric)}"


def _change(what: str, pair: Pair, same: bool, comparisons: int) -> Change:
    before, after = (_known(attack.values) if same else {} for attack in pair)
    lead = difference(after, before, comparisons=comparisons)
    if lead is None:
        means = {"before": pair[0].mean, "after": pair[1].mean}
        return Change(what=what, **means, low=None, high=None, paired=0)
    start = fmean(before[victim] for victim in before.keys() & after.keys())
    return Change(
        what=what,
        before=start,
        after=start + lead.mean,
        low=lead.low,
        high=lead.high,
        paired=lead.n,
    )


def _known(values: Values) -> Values:
    """Without the victims whose rows were not recorded, which may be others."""
    return {victim: value for victim, value in values.items() if victim.row >= 0}


def _verdicts(before: TaskFindings, after: TaskFindings, head: str) -> Iterator[str]:
    """Words and grades of the judge that are not the same."""
    words = [
        {v.place: (v.word, v.grade) for v in side.evidence.verdicts} for side in (before, after)
    ]
    for place in [place for place in words[0] if place in words[1]]:
        first, then = (" ".join(filter(None, side[place])) for side in words)
        if first != then:
            yield f"{head}{', '.join(_where(place))}: {first} to {then}"


def _utility(before: TaskFindings, after: TaskFindings, head: str) -> Iterator[Change]:
    """The measure of utility that counts, at the end of training; pairs are seeds."""
    name = before.utility_name
    for place in dict.fromkeys(point.place for point in before.utility):
        earlier, other = before.at_end(place), after.at_end(place)
        if name is None or earlier is None or other is None or name not in other.values:
            continue
        low, high = (other.over_seeds(name, earlier) or (0.0, None, None))[1:]
        words = (place.setting, _defense(place), title(name))
        yield Change(
            what=head + ", ".join(filter(None, words)),
            before=earlier.values[name],
            after=other.values[name],
            low=low,
            high=high,
            paired=len(earlier.by_seed[name].keys() & other.by_seed[name].keys()),
        )
