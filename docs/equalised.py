"""From a search by cost and attacked runs to a result: ``python -m docs.equalised SEARCH RUN...``.

SEARCH is the folder of ``fedsim calibrate NAME --lose ...``, RUN that of ``fedsim run`` on its
``equal.toml``, or on parts of it. Each defense stands beside Gaussian noise of the strengths that
were searched and attacked. It leaks more if it leaks more than noise that costs no more, and less
if it leaks less than noise that costs no less.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from docs.measured import Columns, ResultFile, Row, significant
from docs.recorded import origin, typed, write
from docs.values import jobs
from experiments.analysis.differences import Side, sections
from experiments.analysis.hits import EXACT_METRIC
from experiments.analysis.paired import (
    Scored,
    Values,
    difference,
    estimate,
    is_attack,
    portfolio,
    scored,
)
from experiments.analysis.statistics import Difference, Estimate
from experiments.decision.answer import Answer, FamilyAnswer, Tried
from experiments.decision.question import FOLDER
from experiments.plan.config import find
from experiments.plan.folder import Run
from experiments.preview.manuals import opening
from experiments.report.naming import named_place
from experiments.wording.names import title
from fedsim.errors import ConfigError
from fedsim.records import MAIN, PRIOR_ONLY, Modality
from fedsim.store.files import read_json, read_record

UNITS: dict[Modality, str] = {"image": "dB", "text": "1"}
"""Of the main metric."""
NONE = "none"
_DIGITS = {"share of accuracy lost": 3, "share of perplexity lost": 3}
CHEAPER, DEARER = "cheaper", "dearer"
LESS, MORE, ALIKE = "leaks less", "leaks more", "not told apart"


def record(search: Path, roots: Sequence[Path]) -> ResultFile:
    """The result file of a search and of the attacks at the strengths that it found.

    Raises:
        ConfigError: no run has Gaussian noise to compare with.
    """
    answer = read_record(search / FOLDER / "answer.json", Answer)
    sides = [side for root in roots for side in sections(root).values()]
    modality = sides[0].findings.modality
    unit, metric = UNITS[modality], title(MAIN[modality])
    values = _by_defense(sides, MAIN[modality])
    noises = [
        spent
        for family in answer.families
        if _is_noise(family)
        for spent in family.tried
        if spent.name in values and spent.costs
    ]
    if not noises:
        raise ConfigError(f"{roots[0]}: has no Gaussian noise that the search tried.")
    others = [family.at for family in answer.families if family.at and not _is_noise(family)]
    rows = [_leakage(NONE, metric, unit, values[NONE])]
    rows.append(_leakage("blind guess", metric, unit, values[PRIOR_ONLY]))
    for noise in noises:
        rows += [*_costs(noise, ""), _leakage(noise.name, metric, unit, values[noise.name])]
    words: Counter[str] = Counter()
    for family in answer.families:
        if _is_noise(family):
            continue
        at = family.at
        rows += _costs(at or family.tried[0], family.end)
        if at is None:
            continue
        rows.append(_leakage(at.name, metric, unit, values[at.name]))
        word = ALIKE
        for side, beside in _beside(noises, at).items():
            apart = difference(values[at.name], values[beside.name], comparisons=2 * len(others))
            assert apart is not None
            rows.append(_row(at.name, f"{metric} less that of {side} noise", unit, apart))
            word = _word(apart, side) or word
        words[word] += 1
        rows.append(Row(setting={"defense": at.name}, measure="beside noise", outcome=word))
    digits = 1 if unit == "dB" else 2
    dear = sum(family.at is None for family in answer.families)
    return ResultFile(
        title=opening(find(answer.name)).rstrip("."),
        paper="",
        command=(
            f"{typed(read_json(search / 'provenance.json'))}; fedsim run "
            f"runs/{answer.name}-calibrated/calibration/equal.toml"
        ),
        **origin(read_json(roots[0] / "provenance.json")),
        columns=Columns(
            lines=("defense",),
            digits={metric: digits, **_DIGITS}
            | {f"{metric} less that of {side} noise": digits for side in (CHEAPER, DEARER)},
        ),
        rows=(*rows, *(_exact(rows, sides) if modality == "text" else ())),
        notes=(
            f"{words[LESS]} of {len(others)} leak less than plain noise of equal utility, "
            f"{words[MORE]} leak more, and {words[ALIKE]} are not told apart. {dear} more lose "
            "more even at the weakest strength, and stand here with what that costs.",
            "Leakage is that of the attack which is best on all other clients. Intervals of "
            "differences hold together for all (Bonferroni), over clients, whose examples are the "
            "same under each defense. Cheaper noise is the strongest here that costs no more than "
            "the defense, dearer noise the weakest that costs no less: it leaks more if it leaks "
            "more than the former, and less if it leaks less than the latter.",
            f"What is lost is the mean of {len(answer.seeds)} seeds, and no more than an estimate. "
            "Noise of further strengths of the search was added to the file that was run.",
            f"Jobs: {'; '.join(jobs(Run.open(root)) for root in roots)}.",
        ),
        generator=f"python -m docs.equalised runs/{answer.name}-calibrated RUN...",
    )


def _beside(noises: Sequence[Tried], at: Tried) -> dict[str, Tried]:
    """The noise next below and next above in cost, where there is one."""
    cheaper = [noise for noise in noises if _lost(noise) <= _lost(at)]
    dearer = [noise for noise in noises if _lost(noise) >= _lost(at)]
    sides = {}
    if cheaper:
        sides[CHEAPER] = max(cheaper, key=_lost)
    if dearer:
        sides[DEARER] = min(dearer, key=_lost)
    return sides


def _lost(spent: Tried) -> float:
    return spent.costs[0].lost.mean


def _exact(rows: Sequence[Row], sides: Sequence[Side]) -> Iterator[Row]:
    """How many texts came back word for word under each defense whose leakage is a row."""
    values = _by_defense(sides, EXACT_METRIC["text"])
    for row in rows:
        name = row.setting["defense"]
        if row.measure == title(MAIN["text"]) and name in values:
            yield _leakage(name, "word for word", "of n", values[name])


def _by_defense(sides: Sequence[Side], metric: str) -> dict[str, Values]:
    """By display name of the defense, and ``prior_only`` without any."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for side in sides:
        for score in scored(side.scores, metric):
            groups[named_place(score.place)[1]].append(score)
    strongest = {
        name: portfolio([score for score in group if is_attack(score)])
        for name, group in groups.items()
    }
    blind = next(score for score in groups[NONE] if score.attacker.attack == PRIOR_ONLY)
    return {**strongest, PRIOR_ONLY: blind.values}


def _is_noise(family: FamilyAnswer) -> bool:
    return family.defense is not None and family.defense.get("name") == "gaussian_noise"


def _costs(at: Tried, limit: str) -> Iterator[Row]:
    """What a strength loses, and whether it is an end of the range."""
    for cost in at.costs:
        yield Row(
            setting={"defense": at.name},
            measure=f"share of {cost.measure} lost",
            n=cost.lost.n,
            mean=significant(cost.lost.mean),
            outcome=limit,
        )


def _leakage(name: str, metric: str, unit: str, values: Values) -> Row:
    return _row(name, metric, unit, estimate(values))


def _row(name: str, measure: str, unit: str, value: Estimate) -> Row:
    mean, low, high = map(significant, (value.mean, value.low, value.high))
    place = {"defense": name}
    return Row(setting=place, measure=measure, n=value.n, mean=mean, low=low, high=high, unit=unit)


def _word(apart: Difference, side: str) -> str:
    """Empty if the interval says nothing; more than dearer noise is no fault."""
    if side == DEARER and apart.high is not None and apart.high < 0:
        return LESS
    return MORE if side == CHEAPER and apart.low is not None and apart.low > 0 else ""


def main() -> None:
    """Record the search and the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("search", type=Path, help="folder of fedsim calibrate")
    parser.add_argument("run", type=Path, nargs="+", help="folders of fedsim run")
    asked = parser.parse_args()
    result = record(asked.search, asked.run)
    print(write(result, read_record(asked.search / FOLDER / "answer.json", Answer).name))


if __name__ == "__main__":
    main()
