"""From a search by cost and an attacked run to a result: ``python -m docs.equalised SEARCH RUN``.

SEARCH is the folder of ``fedsim calibrate NAME --lose ...``, RUN that of ``fedsim run`` on its
``equal.toml``. Each defense stands beside Gaussian noise that loses as much.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from docs.measured import Columns, Result, Row
from docs.recorded import origin, write
from docs.values import jobs
from experiments.analysis.differences import sections
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
from experiments.decision.affordable import Afforded, Spent, Strongest
from experiments.decision.question import FOLDER
from experiments.plan.config import find
from experiments.plan.folder import Run
from experiments.preview.catalog import opening
from experiments.report.naming import named_place
from experiments.wording.names import title
from fedsim.errors import ConfigError
from fedsim.files import read_json, read_record
from fedsim.records import MAIN, PRIOR_ONLY, Modality

UNITS: dict[Modality, str] = {"image": "dB", "text": "1"}
"""Of the main metric."""
NONE = "no defense"
LESS, MORE, ALIKE = "leaks less", "leaks more", "not told apart"


def record(search: Path, root: Path) -> Result:
    """The result file of a search and of the attacks at the strengths that it found.

    Raises:
        ConfigError: the run has no Gaussian noise to compare with.
    """
    answer = read_record(search / FOLDER / "answer.json", Afforded)
    (side,) = sections(root).values()
    modality = side.findings.modality
    unit, metric = UNITS[modality], title(MAIN[modality])
    found = _strongest(scored(side.scores, MAIN[modality]))
    noise = next((one.at for one in answer.families if one.at and _is_noise(one)), None)
    if noise is None or noise.name not in found:
        raise ConfigError(f"{root}: has no Gaussian noise at equal utility to compare with.")
    others = [one for one in answer.families if one.at and not _is_noise(one)]
    rows = [_leakage(NONE, metric, unit, found[NONE])]
    rows.append(_leakage("mean guess", metric, unit, found[PRIOR_ONLY]))
    words: Counter[str] = Counter()
    for family in answer.families:
        at = family.at or family.tried[0]
        rows += _costs(family, at)
        if family.at is None:
            continue
        rows.append(_leakage(at.name, metric, unit, found[at.name]))
        if _is_noise(family):
            continue
        less = difference(found[at.name], found[noise.name], comparisons=len(others))
        assert less is not None
        words[word := _word(less)] += 1
        rows.append(_row(at.name, f"{metric} less noise's", unit, less))
        rows.append(Row(setting={"defense": at.name}, measure="beside noise", outcome=word))
    lose = " ".join(f"--lose {k}={v:g}" for k, v in answer.question.lose.items())
    digits = 1 if unit == "dB" else 2
    return Result(
        title=opening(find(answer.name)).rstrip("."),
        paper="",
        command=f"fedsim calibrate {answer.name} {lose}; fedsim run on its equal.toml",
        **origin(read_json(root / "provenance.json")),
        columns=Columns(
            lines=("defense",), digits={metric: digits, f"{metric} less noise's": digits}
        ),
        rows=tuple(rows),
        notes=(
            f"{words[LESS]} of {len(others)} leak less than plain noise of equal utility, "
            f"{words[MORE]} leak more, and {words[ALIKE]} are not told apart.",
            "Leakage is that of the attack which is best on all other clients. Intervals of "
            f"differences hold together for all {len(others)} (Bonferroni), over clients, whose "
            "examples are the same under each defense.",
            f"Jobs: {jobs(Run.open(root))}.",
        ),
    )


def _strongest(scores: Sequence[Scored]) -> dict[str, Values]:
    """By display name of the defense, and ``prior_only`` without any."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in scores:
        groups[named_place(one.place)[1]].append(one)
    found = {
        name: portfolio([one for one in group if is_attack(one)]) for name, group in groups.items()
    }
    blind = next(one for one in groups[NONE] if one.attacker.attack == PRIOR_ONLY)
    return {**found, PRIOR_ONLY: blind.values}


def _is_noise(family: Strongest) -> bool:
    return family.defense is not None and family.defense.get("name") == "gaussian_noise"


def _costs(family: Strongest, at: Spent) -> Iterator[Row]:
    """What the strength loses, and whether a stronger one was tried."""
    for one in at.costs:
        lost = one.lost
        yield Row(
            setting={"defense": at.name},
            measure=f"share of {one.measure} lost",
            n=lost.n,
            mean=lost.mean,
            outcome="" if family.limit == "bracketed" else family.limit,
        )


def _leakage(name: str, metric: str, unit: str, values: Values) -> Row:
    return _row(name, metric, unit, estimate(values))


def _row(name: str, measure: str, unit: str, found: Estimate) -> Row:
    return Row(
        setting={"defense": name},
        measure=measure,
        n=found.n,
        mean=found.mean,
        low=found.low,
        high=found.high,
        unit=unit,
    )


def _word(less: Difference) -> str:
    if less.high is not None and less.high < 0:
        return LESS
    return MORE if less.low is not None and less.low > 0 else ALIKE


def main() -> None:
    """Record the search and the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("search", type=Path, help="folder of fedsim calibrate")
    parser.add_argument("run", type=Path, help="folder of fedsim run")
    asked = parser.parse_args()
    result = record(asked.search, asked.run)
    print(write(result, read_record(asked.search / FOLDER / "answer.json", Afforded).name))


if __name__ == "__main__":
    main()
