"""From a finished calibration to a file of ``docs/results``: ``python -m docs.calibrated RUN``.

The strengths that the search left out are tried too, on every client, in the folder beside with
``-grid`` at the end of its name: the answer of a full grid, and how many jobs it takes. With
``--search-alone`` none is.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from docs.measured import Columns, ResultFile, Row
from docs.recorded import origin, write
from experiments.console import Console
from experiments.decision.answer import Answer, FamilyAnswer, Tried
from experiments.decision.calibrate import Calibration
from experiments.decision.question import FOLDER, ask, begin
from experiments.decision.wording import bracket, measured
from experiments.plan.config import find, load_plan
from experiments.preview.catalog import opening
from experiments.wording.defense_names import compact
from fedsim.errors import ConfigError
from fedsim.files import read_json, read_record

UNTOLD = "cannot be told"
"""Outcome of a cost where the model without a defense is not surely better than before training."""
_DEPTH = 4
"""Of ``fedsim calibrate``, unless another is asked for."""


def full_grid(answer: Answer, root: Path) -> list[list[Tried]]:
    """Every strength on every client, in a copy of the run folder; finished jobs are kept.

    Raises:
        ConfigError: the run was made from another experiment than the one that it names.
    """
    beside = root.with_name(f"{root.name}-grid")
    if not beside.exists():
        shutil.copytree(root, beside)
    asked = answer.question
    plan = load_plan(answer.name, ["federation.engine=in-process"])
    task = ask(
        plan,
        hold=asked.hold,
        share=asked.share,
        lose=[f"{name}={share}" for name, share in asked.lose.items()],
        ranges=[f"{name}={low}:{high}" for name, (low, high) in asked.ranges.items()],
        depth=asked.strengths.bit_length(),
        group=asked.group,
        error=asked.error,
        seeds=asked.seeds,
    )
    if task.question != asked:
        raise ConfigError(f"{root}: was made from another {answer.name}. Calibrate it again.")
    begin(task, beside)
    with Console(quiet=False) as console:
        return Calibration(
            task.experiment, task.families, task.targets, task.question, beside, console
        ).grid()


def record(root: Path, *, search_alone: bool = False) -> ResultFile:
    """The result file of a calibration, and of the full grid beside it unless left out."""
    answer = read_record(root / FOLDER / "answer.json", Answer)
    provenance = read_json(root / "provenance.json")
    rows = [row for family in answer.families for row in _search_rows(family, answer)]
    if not search_alone:
        pairs = zip(answer.families, full_grid(answer, root), strict=True)
        rows = [row for family, whole in pairs for row in _rows(family, whole, answer)]
    hold = " ".join(f"--hold {target}" for target in answer.question.hold)
    lose = "".join(f" --lose {name}={share:g}" for name, share in answer.question.lose.items())
    depth = answer.question.strengths.bit_length()
    grain = "" if depth == _DEPTH else f" --depth {depth}"
    grain += "".join(
        f" --range {name}={low:g}:{high:g}" for name, (low, high) in answer.question.ranges.items()
    )
    return ResultFile(
        title=opening(find(answer.name)).rstrip("."),
        paper="",
        command=f"fedsim calibrate {answer.name} {hold}{lose}{grain}",
        **origin(provenance),
        columns=Columns(lines=("search",), digits={"jobs": 0, "clients": 0}),
        rows=tuple(rows),
        notes=()
        if search_alone
        else (
            "The grid attacks every client under every strength, with the error shared by all of "
            "them; a search stops where it is sure.",
        ),
        generator=f"python -m docs.calibrated runs/{answer.name}-calibrated"
        + search_alone * " --search-alone",
    )


def _search_rows(family: FamilyAnswer, answer: Answer) -> list[Row]:
    """The search's line, with what holding costs."""
    setting = {"search": f"{family.title}, bisection"}
    tried = (answer.undefended, *family.tried)
    rows = _line(setting, family, family.at_weakest, bracket(family), tried)
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


def _rows(family: FamilyAnswer, whole: list[Tried], answer: Answer) -> list[Row]:
    """The search's line and the grid's, with the share of its jobs that each takes."""
    holding = [trial for trial in whole if trial.word == "holds"]
    leaking = [trial for trial in whole if trial.word == "leaks"]
    setting = {"search": f"{family.title}, full grid"}
    ends = ", ".join(
        f"{family.option}={compact(ends.value)} {ends.word}"
        for ends in (*leaking[-1:], *holding[:1])
    )
    every = (answer.undefended, *whole)
    search = _search_rows(family, answer)
    grid = _line(setting, family, holding[0] if holding else None, ends, every)
    whole_jobs = sum(trial.jobs for trial in every)
    for rows in (search, grid):
        at, row = next((i, row) for i, row in enumerate(rows) if row.measure == "jobs")
        assert row.mean is not None
        share = row.mean / whole_jobs
        rows.insert(at + 1, Row(setting=row.setting, measure="of the grid's jobs", mean=share))
    return [*search, *grid]


def _line(
    setting: dict[str, str],
    family: FamilyAnswer,
    weakest: Tried | None,
    ends: str,
    every: Sequence[Tried],
) -> list[Row]:
    known = max((trial.clients for trial in every), default=0)  # the same at each strength
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
    parser.add_argument("--search-alone", action="store_true", help="run no grid beside it")
    asked = parser.parse_args()
    root = asked.run
    result = record(root, search_alone=asked.search_alone)
    print(write(result, read_record(root / FOLDER / "answer.json", Answer).name))


if __name__ == "__main__":
    main()
