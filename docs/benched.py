"""A benchmark's result file: ``python -m benchmarks WHAT --json | python -m docs.benched WHAT``.

Of a file that is there the title, paper and notes are kept; every row is written anew.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence

from benchmarks.bench_families import FamilyRow
from benchmarks.measure import Measure
from docs.measured import RESULTS, Columns, ResultFile, Row, made_here, read, significant
from docs.recorded import UNTIMED, write

SPEEDS = {
    "capture": "What capturing costs, four clients",
    "images": "Image attacks against the formulas as they read, LeNet",
    "text": "Text matching against the formulas as they read",
    "stages": "What each stage takes",
}
"""Titles of the benchmarks of speed."""
_MATCHING = "LAMP, TAG, DLG: 2 steps"
_MEASURES = {
    "factored gradient": "gradient from factors: error",
    "span, B = 1": "`span`, B = 1",
    "span, B = 4": "B = 4",
    "span, B = 4, frozen": "B = 4, embeddings frozen",
    "span, LoRA r = 64": "LoRA r = 64",
    "film with spans": "FILM with spans",
    "LAMP": _MATCHING,
    "TAG": _MATCHING,
    "DLGText": _MATCHING,
    "LTI": "LTI",
}
_FAMILIES = {
    "bert": "BERT",
    "roberta": "RoBERTa",
    "distilbert": "DistilBERT",
    "albert": "ALBERT",
    "electra": "ELECTRA",
    "mpnet": "MPNet",
    "deberta": "DeBERTa",
    "deberta-v2": "DeBERTa v2, v3",
    "gpt2": "GPT-2",
    "transformer3": "transformer3",
    "gpt_neox": "GPT-NeoX, Pythia",
    "opt": "OPT",
    "phi": "Phi",
    "llama": "Llama, SmolLM",
    "mistral": "Mistral",
    "qwen2": "Qwen 2",
    "qwen3": "Qwen 3",
    "gemma": "Gemma",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3",
}
_TASK = re.compile(r"^'.*' is trained for \S+ and ")
"""How a refusal for its task begins, with the folder of the random weights."""


def families(measured: Sequence[FamilyRow]) -> ResultFile:
    """The result file of all architectures."""
    rows: list[Row] = []
    for row in (row for each in measured for row in _rows(each)):
        rows += [row] if row not in rows else []
    seconds = round(sum(row.seconds for row in measured))
    return _file("families", "families", rows, "architecture", seconds)


def speed(what: str, measured: Sequence[Measure]) -> ResultFile:
    """The result file of one benchmark of speed."""
    rows = [row for each in measured for row in _timed(each)]
    return _file(f"speed-{what}", what, rows, "what", None)


def _file(name: str, what: str, rows: Sequence[Row], line: str, seconds: int | None) -> ResultFile:
    old = read(name) if (RESULTS / f"{name}.json").exists() else None
    return ResultFile(
        title=SPEEDS.get(what) or (old.title if old else what),
        paper=old.paper if old else "",
        command=f"python -m benchmarks {what}",
        **made_here(seconds, threads=""),
        cpu_seconds_reason="" if seconds else UNTIMED,
        columns=Columns(lines=(line,)),
        rows=tuple(rows),
        notes=old.notes if old else (),
        generator=f"python -m benchmarks {what} --json | python -m docs.benched {what}",
    )


def _timed(measured: Measure) -> Iterator[Row]:
    setting = {"what": ", ".join(filter(None, (measured.name, measured.unit)))}
    value, low, high = map(significant, (measured.value, measured.low, measured.high))
    yield Row(setting=setting, measure="measured", mean=value, low=low, high=high)
    if measured.goal != "-":
        yield Row(setting=setting, measure="goal", outcome=measured.goal)


def _rows(measured: FamilyRow) -> Iterator[Row]:
    setting = {"architecture": _FAMILIES[measured.family]}
    measure = _MEASURES[measured.attack]
    if measured.exact is not None:
        n, share = measured.sentences, measured.exact / measured.sentences
        ended = "unfinished" * measured.unfinished
        yield Row(setting=setting, measure=measure, n=n, mean=share, unit="of n", outcome=ended)
        return
    outcome = "runs" if measured.error is None else _error(measured.error)
    reason = f"no: {_TASK.sub('', measured.reason)}" if measured.reason else ""
    yield Row(setting=setting, measure=measure, outcome=reason or outcome)


def _error(error: float) -> str:
    """One digit; what is below that of single precision is not told from nothing."""
    return "below 1e-7" if error < 1e-7 else f"{error:.0e}".replace("e-0", "e-")


def main() -> None:
    """Record the rows that come in."""
    what, rows = sys.argv[1], json.load(sys.stdin)
    if what == "families":
        print(write(families([FamilyRow(**row) for row in rows]), what))
    else:
        print(write(speed(what, [Measure(**row) for row in rows]), f"speed-{what}"))


if __name__ == "__main__":
    main()
