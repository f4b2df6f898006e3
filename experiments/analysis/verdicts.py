"""The verdict on each defense, a word that follows from intervals and from nothing else.

With d the mean difference of an attack to a null baseline on the same victims, and [low, high] its
interval at level 1 - 0.05 / number of attacks, so that all of them hold together with probability
95 % (Bonferroni):

``leaks``: one attack has low > 0 against every baseline that was run.
``no leak found``: every attack has high < margin against every baseline, on five clients or more,
and no job failed. A note says in what share of clients a leak is still possible.
``not attacked``: no attack has a score.
``inconclusive``: anything else; a note says why.

A text is judged by its sentences and also by the words of the batch, since an update can reveal the
words without their order. Words leak if precision and recall both beat every baseline; they do not
if one of the two stays below the margin and the other is not clearly above it. Leaking labels are
mentioned in the notes and do not change the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import pandas as pd

from experiments.analysis.comparison import FEW, BaselineComparison, reasons
from experiments.analysis.evidence import Reached, Verdict, Word
from experiments.analysis.findings import MARGINS
from experiments.analysis.frames import attacked, by_status, jobs
from experiments.analysis.gaps import adaptive_gaps
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.paired import Scored, difference, estimate, portfolio
from experiments.analysis.statistics import Difference, wilson
from fedsim.records import MAIN, OTHER_CLIENT, PRIOR_ONLY, UNSCORED, Modality

WORDS = ("batch_token_precision", "batch_token_recall")
"""Judged together: listing every word gives full recall, naming one sure word full precision."""

LABELS = "label_accuracy"
"""The baselines know granted labels too, so only labels that were withheld can leak."""


def judge(
    place: DefenseInSetting,
    scores: pd.DataFrame,
    found: Mapping[str, Sequence[Scored]],
    modality: Modality,
) -> Verdict:
    """The verdict on one defense in one setting.

    Args:
        place: the defense and its setting.
        scores: all rows of the defense, for its jobs and levels of realism.
        found: metric -> values by attack, at least for ``metrics(modality)``.
        modality: decides the metrics and the margin.
    """
    main = MAIN[modality]
    here = {m: [one for one in found.get(m, ()) if one.place == place] for m in metrics(modality)}
    attacks = [one for one in here[main] if is_attack(one)]
    matches = _matches(here, (main,))
    words = _matches(here, WORDS) if modality == "text" else []
    labels = [match for match in _matches(here, (LABELS,)) if match.beats]
    known = {one.attacker: one for one in attacks}
    best = max(matches, key=lambda match: (match.beats, known[match.attacker].mean), default=None)
    null = best.hardest(main) if best else None
    own = attacked(scores)
    statuses = by_status(jobs(own[own.attack != PRIOR_ONLY]))
    gaps = adaptive_gaps(attacks)
    gap = max(gaps, key=lambda one: max(one.value, one.base), default=None)
    chosen = portfolio(attacks)
    word = _word(matches, words, MARGINS[modality], statuses)
    victims = {victim for one in attacks for victim in one.values}
    return Verdict(
        **place._asdict(),
        word=word,
        notes=(
            *_notes(word, place, matches, words, MARGINS[modality], statuses, attacks),
            *(["labels leak"] if labels else []),
        ),
        levels=tuple(sorted(filter(None, set(scores.level)))),
        attacks=len(attacks),
        victims=len(victims),
        clients=len({victim.owner for victim in victims}),
        jobs=statuses,
        strongest=_reached(known[best.attacker]) if best else None,
        labels=max(labels, key=_over_labels).attacker if labels else None,
        null=null,
        nulls={
            kind: fmean(one.values.values())
            for kind, one in (_nulls(known[best.attacker], here[main]) if best else {}).items()
        },
        over_null=best.against[main][null] if best and null else None,
        beating=tuple(dict.fromkeys(one.attacker for one in (*matches, *words) if one.beats)),
        oblivious=_strongest([one for one in attacks if not one.attacker.adaptive]),
        adaptive=_strongest([one for one in attacks if one.attacker.adaptive]),
        gained=gap.attacker if gap else None,
        gain=gap.difference if gap else None,
        portfolio=estimate(chosen) if chosen else None,
    )


def metrics(modality: Modality) -> tuple[str, ...]:
    """The metrics that verdicts rest on."""
    return (MAIN[modality], LABELS, *(WORDS if modality == "text" else ()))


def is_attack(one: Scored) -> bool:
    """Whether this is an attack, not a control or the baseline that sees no update."""
    return one.control == "none" and one.attacker.attack != PRIOR_ONLY


def _matches(here: Mapping[str, Sequence[Scored]], by: Sequence[str]) -> list[BaselineComparison]:
    """Every attack with values for all of these metrics, compared with its baselines."""
    attacks = {metric: [one for one in here[metric] if is_attack(one)] for metric in by}
    names = [one.attacker for one in attacks[by[0]]]
    found = []
    for name in names:
        own = {m: one for m in by for one in attacks[m] if one.attacker == name}
        if len(own) == len(by):
            against = {m: _against(one, here[m], len(names)) for m, one in own.items()}
            found.append(BaselineComparison(name, against))
    return found


def _nulls(attack: Scored, here: Iterable[Scored]) -> dict[str, Scored]:
    found = {}
    for null in here:
        if (null.attacker.attack, null.control) == (PRIOR_ONLY, "none"):
            found[PRIOR_ONLY] = null
        elif (null.attacker, null.control) == (attack.attacker, OTHER_CLIENT):
            found[OTHER_CLIENT] = null
    return found


def _against(attack: Scored, here: Iterable[Scored], comparisons: int) -> dict[str, Difference]:
    found = {}
    for kind, null in _nulls(attack, here).items():
        between = difference(attack.values, null.values, comparisons=comparisons)
        if between is not None:
            found[kind] = between
    return found


def _over_labels(match: BaselineComparison) -> float:
    return min(found.mean for found in match.against[LABELS].values())


def _strongest(attacks: Sequence[Scored]) -> Reached | None:
    return _reached(max(attacks, key=lambda one: one.mean)) if attacks else None


def _reached(one: Scored) -> Reached:
    return Reached(attacker=one.attacker, leakage=estimate(one.values), refused=len(one.refused))


def _word(
    matches: Sequence[BaselineComparison],
    words: Sequence[BaselineComparison],
    margin: float,
    jobs: Mapping[str, int],
) -> Word:
    ran = jobs["done"] + jobs["failed"] + jobs["timeout"]
    if not matches:
        return "inconclusive" if ran else "not attacked"
    if any(match.beats for match in (*matches, *words)):
        return "leaks"
    whole = jobs["failed"] + jobs["timeout"] + jobs["interrupted"] == 0
    small = all(match.within(margin) for match in (*matches, *words))
    return "no leak found" if whole and small else "inconclusive"


def _notes(
    word: Word,
    place: DefenseInSetting,
    matches: Sequence[BaselineComparison],
    words: Sequence[BaselineComparison],
    margin: float,
    jobs: Mapping[str, int],
    attacks: Sequence[Scored],
) -> Iterable[str]:
    if not matches:
        if word == "inconclusive":
            yield "the metric of the verdicts was not measured"
        else:
            unrun = [f"{jobs[word]} {word}" for word in UNSCORED if jobs[word]]
            yield ", ".join(sorted(unrun)) or "no attack was run"
        return
    if word == "leaks" and not any(match.beats for match in matches):
        yield "words of the batch, not sentences"
    if not any(by_null for match in matches for by_null in match.against.values()):
        yield "no null baseline was run"
    elif word == "inconclusive":
        open_ = [match for match in (*matches, *words) if not match.within(margin)]
        yield from reasons(open_, margin, len(matches))
        if not open_ and jobs["failed"] + jobs["timeout"]:
            yield "jobs failed or ran out of time"
    clients = len({victim.owner for one in attacks for victim in one.values})
    if clients == 1:
        yield "one client: says nothing about others"
    elif clients < FEW:
        yield f"{clients} clients: say little about others"
    elif word == "no leak found":
        yield f"a leak in up to {100 * wilson(0, clients)[1]:.0f} % of clients is not ruled out"
    if place.defense != "none" and not any(match.attacker.adaptive for match in matches):
        yield "no adaptive attack was run"
    if jobs["skipped"]:
        yield f"{jobs['skipped']} jobs were skipped"
    if jobs["interrupted"]:
        yield f"{jobs['interrupted']} jobs were interrupted: fedsim attack runs them again"
