"""From grades to the arena's board: ``python -m docs.board --run SEALED/run SUBMISSION ...``."""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from docs.measured import RESULTS, Columns, ResultFile, Row, read, significant
from docs.recorded import origin, write
from experiments.extras.arena.records import GRADE, Grade, GradedNumber
from experiments.wording.names import title
from fedsim.api.run import read_provenance
from fedsim.store.files import read_record

NAME = "arena"
_METRICS = {"psnr": "PSNR, dB", "rougeL": "ROUGE-L", "membership_auc": "AUC of members"}
_LEAST = 0.05
"""A smaller CPU time, in minutes, is written as this."""


def board(grades: Iterable[Grade], run: Path) -> ResultFile:
    """The result file of the grades, by track and within it the best first.

    Args:
        grades: one for each row.
        run: of a sealed track, for commit, date and machine.
    """
    ordered = sorted(grades, key=lambda grade: (grade.track, -grade.score.mean))
    tracks = dict.fromkeys(grade.track for grade in ordered)
    known = origin(read_provenance(run), round(sum(grade.cpu_seconds for grade in ordered), 1))
    return ResultFile(
        title="The arena's board",
        paper="",
        command="; ".join(f"fedsim seal {track} sealed/{track}" for track in tracks),
        **known | {"seed": None},
        columns=Columns(
            lines=("track", "measured by", "attack"),
            digits={"score": 2, "CPU minutes": 1},
        ),
        rows=tuple(row for grade in ordered for row in _rows(grade)),
        notes=_notes(),
        generator="python -m docs.board --run sealed/TRACK/run SUBMISSION ...",
    )


def _notes() -> tuple[str, ...]:
    """Those of the file, which people write; none if there is no file yet."""
    return read(NAME).notes if (RESULTS / f"{NAME}.json").exists() else ()


def _rows(grade: Grade) -> Iterator[Row]:
    setting = {
        "track": grade.track,
        "measured by": _METRICS[grade.metric],
        "attack": grade.name,
    }

    def row(measure: str, number: GradedNumber, n: int | None = None) -> Row:
        mean, low, high = map(significant, (number.mean, number.low, number.high))
        return Row(setting=setting, measure=measure, n=n, mean=mean, low=low, high=high)

    yield row("score", grade.score, grade.n)
    if grade.exact is not None:
        share = grade.exact / grade.n
        yield Row(setting=setting, measure="exact", n=grade.n, mean=share, unit="of n")
    for name, lead in grade.lead.items():
        yield row(f"less {title(name)}", lead)
    minutes = max(grade.cpu_seconds / 60, _LEAST)
    yield Row(
        setting=setting,
        measure="CPU minutes",
        mean=round(minutes, 2),
        outcome="" if grade.measured else "stated",
    )


def main() -> None:
    """Record the submissions that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="of a sealed track")
    parser.add_argument("submissions", type=Path, nargs="+", help="graded")
    asked = parser.parse_args()
    grades = [read_record(folder / GRADE, Grade) for folder in asked.submissions]
    print(write(board(grades, asked.run), NAME))


if __name__ == "__main__":
    main()
