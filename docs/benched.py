"""The table of architectures: ``python -m benchmarks families --json | python -m docs.benched``.

Title, paper and notes are those of the file; every row is written anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.bench_families import FamilyRow
from docs.measured import Columns, ResultFile, Row, read
from docs.recorded import write

NAME = "families"
_COMMAND = "python -m benchmarks families"
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


def families(measured: list[FamilyRow]) -> ResultFile:
    """The result file of all architectures."""
    old = read(NAME)
    rows: list[Row] = []
    for row in (row for each in measured for row in _rows(each)):
        rows += [row] if row not in rows else []
    head = ["git", "rev-parse", "--short=7", "HEAD"]
    return ResultFile(
        title=old.title,
        paper=old.paper,
        command=_COMMAND,
        commit=subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        seed=0,
        machine=f"{os.cpu_count()} CPU cores, no GPU",
        cpu_seconds=round(sum(row.seconds for row in measured)),
        columns=Columns(lines=("architecture",)),
        rows=tuple(rows),
        notes=old.notes,
        generator=f"{_COMMAND} --json | python -m docs.benched",
    )


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
    print(write(families([FamilyRow(**row) for row in json.load(sys.stdin)]), NAME))


if __name__ == "__main__":
    main()
