"""From a finished calibration to a file of ``docs/results``: ``python -m docs.calibrated RUN``.

The strengths that the search left out are tried too, on every client, in the folder beside with
``-grid`` at the end of its name: the answer of a full grid, and how many jobs it takes.
"""

from __future__ import annotations

import argparse
import shutil
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


def record(root: Path) -> ResultFile:
    """The result file of a calibration and of the full grid beside it."""
    answer = read_record(root / FOLDER / "answer.json", Answer)
    grid = full_grid(answer, root)
    provenance = read_json(root / "provenance.json")
    pairs = zip(answer.families, grid, strict=True)
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
        columns=Columns(lines=("search",), digits={"jobs": 0, "victims": 0}),
        rows=tuple(rows),
        notes=(
            "The grid attacks every client under every strength, with the error shared by all of "
            "them; a search stops where it is sure.",
        ),
        generator=f"python -m docs.calibrated runs/{answer.name}-calibrated",
    )


def _rows(family: FamilyAnswer, whole: list[Tried], answer: Answer) -> list[Row]:
    """The search's line and the grid's."""
    holding = [trial for trial in whole if trial.word == "holds"]
    leaking = [trial for trial in whole if trial.word == "leaks"]
    tried = (answer.undefended, *family.tried)
    whole_jobs = sum(trial.jobs for trial in whole) + answer.undefended.jobs
    lines = {
        "bisection": (family.at_weakest, bracket(family), tried),
        "full grid": (
            holding[0] if holding else None,
            ", ".join(
                f"{family.option}={compact(ends.value)} {ends.word}"
                for ends in (*leaking[-1:], *holding[:1])
            ),
            (answer.undefended, *whole),
        ),
    }
    rows = []
    for name, (weakest, ends, every) in lines.items():
        setting = {"search": f"{family.title}, {name}"}
        jobs = sum(trial.jobs for trial in every)
        at = f"{family.option}={compact(weakest.value)}" if weakest else "none"
        rows += [
            Row(setting=setting, measure="weakest that holds", outcome=at),
            Row(setting=setting, measure="bracket", outcome=ends),
            Row(setting=setting, measure="surely at most", outcome=_bounds(weakest)),
            Row(
                setting=setting,
                measure="victims",
                mean=float(sum(trial.clients for trial in every)),
            ),
            Row(setting=setting, measure="jobs", mean=float(jobs)),
            Row(setting=setting, measure="of the grid's jobs", mean=jobs / whole_jobs),
        ]
        if name == "bisection" and family.costs and family.costs[0].is_measurable:
            cost = family.costs[0]
            lost = cost.lost
            rows.append(
                Row(
                    setting=setting,
                    measure=f"share of {cost.measure} lost",
                    n=lost.n,
                    mean=lost.mean,
                    low=lost.low,
                    high=lost.high,
                )
            )
    return rows


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
    result = record(root)
    print(write(result, read_record(root / FOLDER / "answer.json", Answer).name))


if __name__ == "__main__":
    main()
