"""What is said of captures: causes of a departure, and words with their probabilities.

    python -m benchmarks.bench_captures --record

writes ``docs/results/causes.json`` and ``docs/results/word-probabilities.json``.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import cause_draws, word_draws
from benchmarks.cause_draws import CAUSES, NETWORKS, DrawnCause
from benchmarks.word_draws import RANKS, RATIOS, WAYS, DrawnWords
from docs.measured import RESULTS, made_here
from experiments.analysis.statistics import clopper_pearson
from fedsim.process import one_thread
from fedsim.visible import say

_GENERATOR = "python -m benchmarks.bench_captures --record"


def cause_rows(drawn: Sequence[DrawnCause]) -> list[dict[str, Any]]:
    """How often a cause is named, or none where there is none, and how often another is."""
    rows = []
    for cause in CAUSES:
        for network in NETWORKS:
            part = [each for each in drawn if (each.cause, each.network) == (cause, network)]
            told = part[0].right if part else ""
            measure = "named" if told else "none named"
            right = sum(each.said == ((told,) if told else ()) for each in part)
            rows.append(_row({"cause": cause, "network": network}, measure, right, len(part)))
    for network in (*NETWORKS, "all"):
        part = [each for each in drawn if network in (each.network, "all")]
        wrong = sum(each.wrong for each in part)
        rows.append(_row({"cause": "all", "network": network}, "another named", wrong, len(part)))
    low, high = clopper_pearson(wrong, len(part), error=0.1)  # each end one-sided, at 95 %
    rows[-1] |= {"low": round(low, 4), "high": round(high, 4)}
    return rows


def word_rows(drawn: Sequence[DrawnWords]) -> list[dict[str, Any]]:
    """Of words with a probability of .9 and more, those in the client's text."""
    rows = []
    for ratio in (*RATIOS, "all"):
        for way in (*WAYS, "all"):
            part = [e for e in drawn if ratio in (e.ratio, "all") and way in (e.way, "all")]
            called, right = sum(e.called for e in part), sum(e.right for e in part)
            setting = {"tokens by rank": str(ratio), "client": way}
            rows.append(_row(setting, "in the text", right, called))
    low, high = clopper_pearson(right, called, error=0.1)
    rows[-1] |= {"low": round(low, 3), "high": round(high, 3)}
    return rows


def _row(setting: dict[str, str], measure: str, count: int, n: int) -> dict[str, Any]:
    if not n:
        return {"setting": setting, "measure": measure, "outcome": "none called"}
    return {"setting": setting, "measure": measure, "n": n, "mean": count / n, "unit": "of n"}


def _recorded(name: str, rows: list[dict[str, Any]], seconds: float, clients: int) -> None:
    table = {
        "title": _TITLES[name],
        "paper": "",
        "command": f"python -m benchmarks.bench_captures --only {name} --clients {clients}",
        **made_here(seconds),
        "columns": _COLUMNS[name],
        "rows": rows,
        "notes": _NOTES[name],
        "generator": _GENERATOR,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(table, indent=1) + "\n")


_TITLES = {
    "causes": "Causes of a departure, and what a note names",
    "word-probabilities": "Words that a note gives a probability of .9 and more",
}
_COLUMNS: Mapping[str, dict[str, Any]] = {
    "causes": {"lines": ["cause", "measure"], "across": "network", "digits": {"another named": 4}},
    "word-probabilities": {"lines": ["tokens by rank"], "across": "client", "digits": {}},
}
_NOTES = {
    "causes": [
        "A client's step on one picture, read by `closed_form`, which is told the network and a "
        "plain cross-entropy. Columns: one hidden layer of 48 units (ReLU) or 64 (tanh), two of 32 "
        "or of 64.",
        "Named: the note has the sentence of the client's cause and no other. None named: the "
        "client has no cause, or one that no test tells. Where a cause is not named, the note says "
        "that it is open, or nothing. A transposed matrix shows where a layer is square.",
        "The interval is exact, each end one-sided at 95 % (Clopper and Pearson).",
    ],
    "word-probabilities": [
        "A small GPT-2, clients with one text, adapters of rank "
        + ", ".join(map(str, RANKS))
        + " of the attention's first layer. Whatever a search proves beside it, these are the "
        "words that its note would print.",
        "n: words called. From one step of adapters with little room for the text few are called, "
        "and none from merged ones, whose update spans no input. The interval is exact, each end "
        "one-sided at 95 % (Clopper and Pearson), with a word as one trial.",
    ],
}
PARTS: Mapping[str, Callable[[int], list[dict[str, Any]]]] = {
    "causes": lambda clients: cause_rows([*cause_draws.draws(clients)]),
    "word-probabilities": lambda clients: word_rows([*word_draws.draws(clients)]),
}
CLIENTS = {"causes": 5, "word-probabilities": 17}
"""Of each cause and network, and of each way and ratio."""


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", choices=[*PARTS])
    options.add_argument("--clients", type=int, help="of each cell")
    options.add_argument("--record", action="store_true")
    return options


def main() -> None:
    """Draw both parts, or one, and record them."""
    given = parser().parse_args()
    for name in [given.only] if given.only else PARTS:
        with one_thread():
            begun = time.process_time()
            clients = given.clients or CLIENTS[name]
            rows = PARTS[name](clients)
            seconds = time.process_time() - begun
        for row in rows:
            setting = ", ".join(row["setting"].values())
            say(f"{setting:<60} {row['measure']:<15} {row.get('n', 0):>5} {row.get('mean', '-')}")
        if given.record:
            _recorded(name, rows, seconds, clients)


if __name__ == "__main__":
    main()
