"""From ``fedsim limits`` to a file of ``docs/results``: ``python -m docs.bracketed RUN``.

The run has been attacked and reported before, so that both sides of each bracket are there.
"""

import argparse
from pathlib import Path
from statistics import median

from docs.measured import Columns, ResultFile, Row
from docs.recorded import origin, write
from experiments.analysis.findings import Findings, TaskFindings
from experiments.bounds.records import LimitsRecord
from experiments.plan.config import find
from experiments.plan.folder import Run
from experiments.preview.manuals import opening
from experiments.report.brackets import Bracket, brackets, budgets
from experiments.wording.names import defense_name, show
from fedsim.store.files import read_json, read_record

_BOUNDS = ("blind guess", "reached", "at least", "at most", "at most if Gaussian")


def record(root: Path) -> ResultFile:
    """The result file of a run with ``limits.json`` and ``summary.json``."""
    run = Run.open(root)
    cells = {cell.name: cell.config for cell in run.cells}
    known = budgets(root, cells, run.record("limits.json", LimitsRecord))
    sections = read_record(root / "summary.json", Findings).sections
    pairs = [
        (section, bracket) for section in sections for bracket in brackets(section, known).values()
    ]
    provenance = read_json(root / "provenance.json")
    return ResultFile(
        title=opening(find(run.plan.name)).rstrip("."),
        paper="",
        command=f"fedsim run {run.plan.name}; fedsim limits runs/{run.plan.name}",
        **origin(provenance),
        columns=Columns(lines=("defense",), digits=dict.fromkeys(_BOUNDS, _digits(pairs))),
        rows=tuple(row for section, bracket in pairs for row in _rows(section, bracket)),
        notes=tuple(_gap([bracket for _, bracket in pairs])),
        generator=f"python -m docs.bracketed runs/{run.plan.name}",
    )


def _digits(pairs: list[tuple[TaskFindings, Bracket]]) -> int:
    """One for decibels, two for shares."""
    return 1 if all(section.modality == "image" for section, _ in pairs) else 2


def _rows(section: TaskFindings, bracket: Bracket) -> list[Row]:
    setting = {"defense": defense_name(bracket.limit.defense, bracket.limit.defense_options)}
    victims = {result.n for result in section.results if not result.is_control}
    values = {
        "blind guess": bracket.blind,
        "reached": bracket.reached,
        "at least": bracket.least,
        "at most": bracket.most,
        "at most if Gaussian": bracket.assumed,
        "exactly at most": bracket.exact,
    }
    numbers = [
        Row(
            setting=setting,
            measure=name,
            n=max(victims),
            mean=value.value,
            low=value.low,
            high=value.high,
            unit=value.unit,
        )
        for name, value in values.items()
        if value is not None
    ]
    words = {
        "nats of a reply": show(bracket.limit.nats),
        "bounded by": bracket.limit.source,
        "strongest": bracket.attack,
    }
    return [
        *(Row(setting=setting, measure=name, outcome=said) for name, said in words.items()),
        *numbers,
    ]


def _gap(every: list[Bracket]) -> list[str]:
    """How far apart both sides are, under Gaussian noise without clipping."""
    gaps = [
        min(end.value for end in (bracket.most, bracket.assumed) if end) - bracket.reached.value
        for bracket in every
        if bracket.limit.defense == "gaussian_noise"
        and bracket.reached
        and (bracket.most or bracket.assumed)
    ]
    return (
        [
            "Under Gaussian noise the median of *at most if Gaussian* less reached is "
            f"{median(gaps):.1f} dB."
        ]
        if gaps
        else []
    )


def main() -> None:
    """Record the brackets of the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="its folder")
    root = parser.parse_args().run
    print(write(record(root), Run.open(root).plan.name))


if __name__ == "__main__":
    main()
