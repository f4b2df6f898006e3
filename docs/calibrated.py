"""From a finished calibration to a file of ``docs/results``: ``python -m docs.calibrated RUN``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from docs.measured import Columns, ResultFile, Row
from docs.recorded import origin, typed, write
from experiments.decision.answer import Answer, FamilyAnswer, Tried
from experiments.decision.question import FOLDER
from experiments.decision.wording import bracket, measured
from experiments.plan.config import find
from experiments.preview.manuals import opening
from experiments.wording.names import compact
from fedsim.store.files import read_json, read_record

UNTOLD = "cannot be told"
"""Outcome of a cost where the model without a defense is not surely better than before training."""


def record(root: Path) -> ResultFile:
    """The result file of a calibration."""
    answer = read_record(root / FOLDER / "answer.json", Answer)
    provenance = read_json(root / "provenance.json")
    rows = [row for family in answer.families for row in _rows(family, answer)]
    return ResultFile(
        title=opening(find(answer.name)).rstrip("."),
        paper="",
        command=typed(provenance),
        **origin(provenance),
        columns=Columns(lines=("search",), digits={"jobs": 0, "clients": 0}),
        rows=tuple(rows),
        notes=(),
        generator=f"python -m docs.calibrated runs/{answer.name}-calibrated",
    )


def _rows(family: FamilyAnswer, answer: Answer) -> list[Row]:
    """The search's line, with what holding costs."""
    setting = {"search": f"{family.title}, bisection"}
    tried = (answer.undefended, *family.tried)
    rows = _line(setting, family, family.at, bracket(family), tried)
    for cost in family.costs[:1]:
        lost, measure = cost.lost, f"share of {cost.measure} lost"
        if not cost.is_measurable:
            rows.append(Row(setting=setting, measure=measure, n=lost.n, outcome=UNTOLD))
            continue
        rows.append(
            Row(
                setting=setting,
                measure=measure,
                n=lost.n,
                mean=lost.mean,
                low=lost.low,
                high=lost.high,
            )
        )
    return rows


def _line(
    setting: dict[str, str],
    family: FamilyAnswer,
    weakest: Tried | None,
    ends: str,
    every: Sequence[Tried],
) -> list[Row]:
    known = weakest.clients if weakest else max(trial.clients for trial in every)
    at = f"{family.option}={compact(weakest.value)}" if weakest else "none"
    return [
        Row(setting=setting, measure="weakest that holds", outcome=at),
        Row(setting=setting, measure="bracket", outcome=ends),
        Row(setting=setting, measure="surely at most", outcome=_bounds(weakest)),
        Row(setting=setting, measure="clients", mean=float(known)),
        Row(setting=setting, measure="jobs", mean=float(sum(trial.jobs for trial in every))),
    ]


def _bounds(tried: Tried | None) -> str:
    if tried is None:
        return "none"
    parts = [
        f"{reached.target} {measured(reached.target, reached.high)}" for reached in tried.reached
    ]
    return ", ".join(parts)


def main() -> None:
    """Record the calibration that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="its folder")
    root = parser.parse_args().run
    print(write(record(root), read_record(root / FOLDER / "answer.json", Answer).name))


if __name__ == "__main__":
    main()
