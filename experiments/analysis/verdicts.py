"""The verdict on each defense: one record of evidence, and one function from it to a word.

``docs/reference/verdicts.md`` has the rule. The first that holds: rows *leak* where examples came
back beyond chance, or all attacks as one beat every baseline; *labels* or *members leak*; rows
*hold by bound*; *no leak is found*, by attacks with power; else it is *not decided*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import Any

import pandas as pd

from experiments.analysis.evidence import Clients, Grade, Reached, Reason, Shown, Verdict
from experiments.analysis.frames import jobs_of_attacks
from experiments.analysis.hits import ERROR, EXACT_METRIC, Bar, Hits, examples, hits, owners
from experiments.analysis.keys import DefenseInSetting, VictimKey
from experiments.analysis.membership import Finding
from experiments.analysis.paired import Scored, estimate, is_attack
from experiments.analysis.portfolio import (
    Comparison,
    Question,
    blind_guess,
    compare,
    jointly,
    leaking_parts,
    refusing,
)
from experiments.analysis.power import (
    Search,
    ended_early,
    lost,
    noted,
    powerless,
    unlike_planted,
    unsure,
)
from experiments.analysis.statistics import Ends, clopper_pearson
from experiments.plan.config import VerdictRule
from fedsim.records import LOST, MAIN, OTHER_CLIENT, PRIOR_ONLY, UNSCORED, AttackKey, Modality

WORDS = ("batch_token_precision", "batch_token_recall")
"""Judged together: listing every word gives full recall, naming one sure word full precision."""

LABELS = "label_accuracy"
"""The baselines know granted labels too, so only labels that were withheld can leak."""
CLASS = {"psnr": 3.0, "rougeL": 0.15}
"""What knowing the class may bring, which the null does not know where labels are withheld: 3 dB if
it explains half of the variance of pixels. A lead below it beside labels that leak is of the class
alone. Halved, the mean image of a class of MNIST (1.25 dB) still is; doubled, outlines are no
leak."""

_RULE = VerdictRule()
_NOTHING: Mapping[AttackKey, Any] = {}
_MANY_LABELS = 0.5
"""Share of labels read beyond every baseline that no word of holding stands beside, though the
clients are too few, or too much alike, to show it. Halved, chance keeps verdicts on five clients
open; doubled, none is."""


@dataclass(frozen=True)
class Evidence:
    """All that the word rests on; see ``judge``.

    Attributes:
        here: metric -> values by attack, controls included, under this defense.
        jobs: by status, those of ``prior_only`` left out.
        comparisons: questions that share the error of a leak.
    """

    place: DefenseInSetting
    here: Mapping[str, Sequence[Scored]]
    modality: Modality
    rule: VerdictRule
    jobs: Mapping[str, int]
    working: Mapping[AttackKey, str] = field(default_factory=dict)
    searches: Mapping[AttackKey, Search] = field(default_factory=dict)
    members: Finding | None = None
    bounded: bool = False
    planted: Sequence[Scored] = ()
    comparisons: int = 1

    @cached_property
    def main(self) -> Sequence[Scored]:
        """All values of the main metric."""
        return self.here[MAIN[self.modality]]

    @cached_property
    def attacks(self) -> list[Scored]:
        """On the main metric."""
        return list(filter(is_attack, self.main))

    @cached_property
    def victims(self) -> frozenset[VictimKey]:
        """Of any attack."""
        return frozenset(victim for attack in self.attacks for victim in attack.values)

    @cached_property
    def match(self) -> Comparison | None:
        """All attacks as one against their baselines; None where none has a score."""
        return compare(self.attacks, self.main, self.question, self.comparisons)

    @cached_property
    def over_class(self) -> Comparison | None:
        """The same by what the class cannot explain, where withheld labels may be read."""
        if max(self.readers.values(), default=0.0) <= self.rule.rouge:
            return None
        question = replace(self.question, smallest=CLASS[MAIN[self.modality]])
        return compare(self.attacks, self.main, question, self.comparisons)

    @cached_property
    def answered(self) -> list[tuple[Scored, Comparison]]:
        """Each attack that refused victims, on the others, against its baselines."""
        return list(refusing(self.attacks, self.main, self.question))

    @cached_property
    def words(self) -> Comparison | None:
        """As ``match``, by words of the batch that are both right and complete."""
        known = [self.here[metric] for metric in WORDS if metric in self.here]
        return self.by_shares("words", jointly(known))

    @cached_property
    def labels(self) -> Comparison | None:
        """As ``match``, by the labels that attacks infer."""
        return self.by_shares(LABELS, self.here[LABELS])

    @cached_property
    def readers(self) -> dict[AttackKey, float]:
        """Mean lead of each attack by labels, over the baseline that it beats by least."""
        known = self.here[LABELS]
        question = Question(LABELS, self.rule.rouge, self.rule.clients)
        matches = {a.attacker: compare([a], known, question) for a in filter(is_attack, known)}
        return {key: match.mean for key, match in matches.items() if match and match.leads}

    @cached_property
    def exact(self) -> Hits:
        """Victims that came back exactly."""
        return self.hits(self.attacks, "verbatim")

    @cached_property
    def recovered(self) -> Hits:
        """Victims that passed the threshold."""
        return self.hits(self.attacks, "recognisable")

    @cached_property
    def grade(self) -> Grade | None:
        """How bad a leak of rows is; None where none is shown."""
        error = ERROR / self.comparisons
        if self.exact.counted(error):
            return "verbatim"
        if self.recovered.shown(error):
            return "recognisable"
        match = self.over_class or self.match
        if match is not None and match.leaks:
            alone = self.recovered.alone and match.mean_leaks
            return "recognisable" if alone else "better than guessing"
        return "words" if self.words is not None and self.words.leaks else None

    @property
    def attacked(self) -> bool:
        """Whether any attack guessed, or was to and did not end."""
        return self.match is not None or any(self.jobs[status] for status in ("done", *LOST))

    @cached_property
    def lacking(self) -> tuple[Reason, ...]:
        """What a word of holding lacks, whatever the scores are."""
        if self.match is not None:
            known = self.place, self.attacks, self.main, self.working
            without = powerless(*known, self.rule.smallest(self.modality))
            return (*lost(self.jobs), *without, *ended_early(self.searches))
        if self.attacked:
            return (Reason(kind="no_metric"),)
        unrun = {str(word): n for word in sorted(UNSCORED) if (n := float(self.jobs[word]))}
        return (Reason(kind="unrun", numbers=unrun),)

    @cached_property
    def beating(self) -> tuple[AttackKey, ...]:
        """Attacks that are shown to leak rows alone, by whatever route."""
        return tuple(a.attacker for a in self.attacks if self._alone(a).grade is not None)

    def hits(self, attacks: Sequence[Scored], bar: Bar) -> Hits:
        """Victims that passed a bar under some of the attacks."""
        return hits(self.here, self.modality, attacks, bar)

    def clients(self, hit: frozenset[VictimKey], error: float = 0.05) -> Clients:
        """Those of these victims as a share of all; ``error`` is of each end.

        At most, it is a share of those that some attack did not refuse. Where clients hold the same
        rows, and these are fewer, rows are the trials of an interval.
        """
        number, ends = len(owners(hit)), list[Ends]()
        answered = frozenset(victim for a in self.attacks for victim in a.answered.values)
        for known in (self.victims, answered):
            clients = len(owners(known))
            trials = min(clients, examples(known))
            ends.append(clopper_pearson(number * trials / max(clients, 1), trials, 2 * error))
        low, high = ends[0][0], ends[1][1]
        of = len(owners(self.victims))
        return Clients(hit=number, of=of, examples=len(hit), low=low, high=high)

    @property
    def question(self) -> Question:
        """What is asked of the main metric."""
        smallest, shares = self.rule.smallest(self.modality), self.modality == "text"
        return Question(MAIN[self.modality], smallest, self.rule.clients, shares)

    def by_shares(self, metric: str, known: Sequence[Scored]) -> Comparison | None:
        """As ``match``, by a share of words or labels."""
        question = Question(metric, self.rule.rouge, self.rule.clients)
        return compare(list(filter(is_attack, known)), known, question, self.comparisons)

    def _alone(self, attack: Scored) -> Evidence:
        """What one of the attacks shows; all share the error."""
        here = {
            metric: [
                o for o in known if o.attacker == attack.attacker or o.attacker.attack == PRIOR_ONLY
            ]
            for metric, known in self.here.items()
        }
        return replace(self, here=here, comparisons=len(self.attacks))


def judge(
    place: DefenseInSetting,
    scores: pd.DataFrame,
    scored_by_metric: Mapping[str, Sequence[Scored]],
    modality: Modality,
    *,
    rule: VerdictRule = _RULE,
    working: Mapping[AttackKey, str] = _NOTHING,
    searches: Mapping[AttackKey, Search] = _NOTHING,
    members: Finding | None = None,
    bounded: bool = False,
    planted: Sequence[Scored] = (),
) -> Verdict:
    """The verdict on one defense in one setting.

    Args:
        place: the defense and its setting.
        scores: all rows of the defense, for its jobs and levels of realism.
        scored_by_metric: metric -> values by attack, at least for ``metrics(modality)``.
        modality: decides the metrics.
        rule: the smallest effect that counts, and the fewest clients.
        working: attacks that are shown to leak undefended victims, and the setting of these.
        searches: how far attacks searched their objective, of those that have one.
        members: what tells members best.
        bounded: whether a bound on information rules out the smallest effect, by any attack.
        planted: main metric on batches whose rows the attacker knows, sent as clients' replies are.
    """
    here = {
        metric: [attempt for attempt in scored_by_metric.get(metric, ()) if attempt.place == place]
        for metric in metrics(modality)
    }
    done = jobs_of_attacks(scores)
    seen = Evidence(place, here, modality, rule, done, working, searches, members, bounded, planted)
    labels = None
    if seen.labels is not None and seen.labels.leaks:
        labels = max(seen.readers, key=lambda key: seen.readers[key])
    telling = members if members is not None and members.tells else None
    settled = seen.grade is not None or seen.bounded
    shown = Shown(
        grades=frozenset(filter(None, (seen.grade,))),
        open=() if settled else (*_open(seen), *seen.lacking),
        attacked=seen.attacked,
        bounded=seen.bounded,
        labels=labels is not None,
        members=telling is not None,
    )
    best = max(seen.attacks, key=lambda a: (a.attacker in seen.beating, a.mean), default=None)
    null = seen.match.hardest if seen.match else None
    return Verdict(
        **place._asdict(),
        word=shown.word,
        rows=shown.rows,
        grade=shown.grade,
        smallest=rule.smallest(modality),
        most=_most(seen),
        verbatim=seen.clients(seen.exact.counted()),
        exact=seen.clients(seen.exact.hit),
        recovered=seen.clients(seen.recovered.alone),
        reasons=tuple(_reasons(shown, seen)),
        lacking=seen.lacking,
        levels=tuple(sorted(filter(None, set(scores.level)))),
        attacks=len(seen.attacks),
        victims=len(seen.victims),
        clients=len(owners(seen.victims)),
        jobs=done,
        strongest=None
        if best is None
        else Reached(
            attacker=best.attacker, leakage=estimate(best.values), refused=len(best.refused)
        ),
        labels=labels,
        members=telling,
        null=null,
        nulls=_nulls(best, seen.main) if best else {},
        over_null=seen.match.leads[null] if seen.match and null else None,
        beating=seen.beating,
    )


def metrics(modality: Modality) -> tuple[str, ...]:
    """The metrics that verdicts rest on."""
    words = WORDS if modality == "text" else ()
    return (MAIN[modality], LABELS, EXACT_METRIC[modality], *words)


def _false_certificates(seen: Evidence) -> Iterator[Reason]:
    for attack in seen.attacks:
        known = seen.hits([attack], "verbatim")
        if false := len(known.certified - known.hit):
            numbers = {"false": float(false), "certified": float(len(known.certified))}
            yield Reason(kind="false_certificates", attack=attack.attacker, numbers=numbers)


def _nulls(best: Scored, here: Sequence[Scored]) -> dict[str, float]:
    """Mean of each baseline of an attack."""
    kind = best.attacker, OTHER_CLIENT
    other = next((null for null in here if (null.attacker, null.control) == kind), None)
    known = {PRIOR_ONLY: blind_guess(here), OTHER_CLIENT: other}
    return {kind: null.mean for kind, null in known.items() if null}


def _most(seen: Evidence) -> float | None:
    """The largest of the upper bounds; None if one is missing."""
    if seen.match is None:
        return None
    most = max(match.most for match in (seen.match, *(match for _, match in seen.answered)))
    return most if isfinite(most) else None


def _open(seen: Evidence) -> Iterator[Reason]:
    """What keeps rows that are not shown to leak from ``no leak found``."""
    match = seen.match
    if match is None:
        return
    if match.leaks:  # and it is the class that does
        yield Reason(kind="class_only", numbers={"mean": match.mean})
    elif not match.within:
        yield match.reason
    if seen.words is not None and not seen.words.within:
        yield seen.words.reason
    for side in (seen.by_shares(metric, seen.here.get(metric, ())) for metric in WORDS):
        if side is not None and side.mean_leaks:  # without the other
            yield Reason(kind="beats_one", metric=side.question.metric, numbers={"mean": side.mean})
    yield from (_answered(attack, part) for attack, part in seen.answered if not part.within)
    yield from leaking_parts(seen.attacks, seen.main, seen.question)
    yield from unsure(seen.members)
    yield from unlike_planted(seen.attacks, seen.planted)
    if seen.labels is not None and not seen.labels.leaks and seen.labels.mean > _MANY_LABELS:
        yield seen.labels.reason
    yield from _more(seen)


def _answered(attack: Scored, match: Comparison) -> Reason:
    """That an attack, on the victims that it did not refuse, may leak these."""
    of, refused = float(len(attack.values)), float(len(attack.refused))
    least = {"mean": match.mean} if match.leads else {}
    numbers, metric = {"of": of, "victims": of - refused} | least, match.question.metric
    return Reason(kind="answered", attack=attack.attacker, metric=metric, numbers=numbers)


def _more(seen: Evidence) -> Iterator[Reason]:
    """Examples or clients that stand out, too few to exclude chance."""
    more, less = examples(seen.recovered.alone), examples(seen.recovered.chance)
    if more > less:
        numbers = {"clients": float(len(owners(seen.recovered.alone))), "blind": float(less)}
        yield Reason(kind="recovered", numbers=numbers)
    if seen.exact.alone:
        yield Reason(kind="exact", numbers={"clients": float(len(owners(seen.exact.alone)))})
    if seen.match is not None and seen.match.above and not seen.match.leaks:
        numbers = {"clients": float(len(seen.match.above))}
        yield Reason(kind="beyond", numbers=numbers)


def _reasons(shown: Shown, seen: Evidence) -> Iterator[Reason]:
    rows = shown.rows
    yield from _false_certificates(seen)
    if rows in ("not attacked", "not decided"):
        yield from shown.open
    if seen.match is None:
        return
    if rows == "no leak found":
        yield from noted(seen.place, seen.attacks, seen.working)
        if not seen.searches:
            yield Reason(kind="power_unmeasured")
    elif rows == "leaks":
        if seen.bounded:
            yield Reason(kind="contradiction")
        if not seen.match.leads:
            yield Reason(kind="no_null")
        yield from (reason for reason in lost(seen.jobs) if reason.kind != "failed")
    if skipped := seen.jobs["skipped"]:
        yield Reason(kind="skipped", numbers={"jobs": float(skipped)})
