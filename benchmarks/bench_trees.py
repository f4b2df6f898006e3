"""What trees tell by depth, trees, rounds, rows and what a client hides; beside baselines.

    python -m benchmarks.bench_trees --record

writes ``docs/results/trees.json``. It needs XGBoost and scikit-learn.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.trees_federation import (
    Alter,
    bagging,
    bare,
    masked,
    noisy_leaves,
    packaged,
    split,
    stroke_like,
    without_base_score,
)
from docs.measured import RESULTS, made_here
from experiments.extras.trees.clients import Victim, victims
from experiments.extras.trees.search import Guess, search
from experiments.extras.trees.sums import Facts, leaves_of, read_facts
from experiments.extras.trees.table import Rows, Schema, filled, intervals, score, shuffled
from fedsim.visible import say

_RESULT = RESULTS / "trees.json"
_SECONDS = 10.0


@dataclass(frozen=True)
class Case:
    """One line of the table: clients, of which all but the last, the server's, are attacked."""

    name: str
    data: str = "stroke-like"
    clients: int = 9
    rows: int = 100
    rounds: int = 1
    trees: int = 100
    parameters: Mapping[str, Any] = field(default_factory=dict)
    alter: Alter | None = None


_NOISE = partial(noisy_leaves, share=0.1, rng=np.random.default_rng(0))
CASES = (
    Case("100 rows, 100 trees of depth 5"),
    Case("depth 3", parameters={"max_depth": 3}),
    Case("depth 8", parameters={"max_depth": 8}),
    Case("10 trees", trees=10),
    Case("30 rows", rows=30),
    Case("300 rows", rows=300),
    Case("bagging, 20 rounds of 1 tree", rounds=20, trees=1),
    Case("bagging, 5 rounds of 10 trees", rounds=5, trees=10),
    Case("learning rate 0.1", parameters={"eta": 0.1}),
    Case("half of the rows a tree", parameters={"subsample": 0.5}),
    Case("leaves of a row", parameters={"min_child_weight": 0}),
    Case("sum_hessian masked, as NVFlare does", alter=masked),
    Case("base score hidden", alter=without_base_score),
    Case("thresholds and leaves alone", alter=bare),
    Case("these with noise of 0.1 on leaves", alter=_NOISE),
    Case("breast cancer", data="breast_cancer", clients=5),
    Case("diabetes, a regression", data="diabetes", clients=4),
)


def measured(case: Case, seconds: float) -> dict[str, Any]:
    """The means over clients of what was reached, and of the baselines."""
    tables = split(_rows(case), case.clients, case.rows)
    parameters = {"objective": "binary:logistic", "max_depth": 5, **case.parameters}
    if case.data == "diabetes":
        parameters["objective"] = "reg:squarederror"
    replies = bagging(tables, case.rounds, case.trees, parameters, case.alter)
    schema = Schema.of(replies[0].model.names, tables[-1].values)
    attacked = [_attacked(victim, schema, case.rows, seconds) for victim in victims(replies)[:-1]]
    return _means(tables, attacked, schema)


def _rows(case: Case) -> Rows:
    count = case.clients * case.rows
    return stroke_like(count, 0) if case.data == "stroke-like" else packaged(case.data)


@dataclass(frozen=True, eq=False)
class _Attacked:
    victim: Victim
    facts: Facts
    rows: Rows
    guess: Guess


def _attacked(victim: Victim, schema: Schema, claimed: int, seconds: float) -> _Attacked:
    facts = read_facts(victim, claimed)
    guess = search(victim, facts, seconds)
    rows = filled(schema, guess, *intervals(victim.cells(), schema, guess))
    return _Attacked(victim, facts, rows, guess)


def _means(tables: Sequence[Rows], attacked: Sequence[_Attacked], schema: Schema) -> dict[str, Any]:
    pairs = list(zip(tables, attacked, strict=False))
    own = [score(rows, one.rows, schema) for rows, one in pairs]
    other = [
        score(rows, one.rows, schema).values
        for (rows, _), one in zip(pairs, [*attacked[1:], attacked[0]], strict=True)
    ]
    columns = [score(rows, shuffled(rows, seed), schema) for rows, _ in pairs for seed in range(3)]
    return {
        "values": np.mean([one.values for one in own]),
        "rows": np.mean([one.rows for one in own]),
        "values, own columns shuffled": np.mean([one.values for one in columns]),
        "rows, own columns shuffled": np.mean([one.rows for one in columns]),
        "values, other client's trees": np.mean(other),
        "trees followed": np.mean([one.guess.trees / len(one.victim.grown) for one in attacked]),
        "no other rows": np.mean([one.guess.proven for one in attacked]),
        "first tree's counts": np.mean([_counts_right(rows, one) for rows, one in pairs]),
        "CPU s": np.mean([one.guess.seconds for one in attacked]),
    }


def by_leaf(victim: Victim, facts: Facts, rows: Rows) -> tuple[list[int], list[int]]:
    """Rows and positive labels in each leaf of the first own tree."""
    cells, first = victim.cells(), int(victim.grown[0])
    leaves = leaves_of(cells, victim, first, (facts.eta, facts.penalty), len(rows.values))
    bins = cells.bins(rows.values)[:, None]
    inside = ((leaves.low <= bins) & (bins <= leaves.high)).all(2)
    return inside.sum(0).tolist(), (inside.T @ rows.labels).astype(int).tolist()


def _counts_right(rows: Rows, one: _Attacked) -> bool:
    """Whether rows and labels by leaf of the first tree are exactly the private ones."""
    told, (counts, labels) = one.facts, by_leaf(one.victim, one.facts, rows)
    labels = labels if one.victim.head.is_logistic else []
    return (told.leaf_rows.tolist(), told.leaf_positive.tolist()) == (counts, labels)


def table(seconds: float) -> Iterator[dict[str, Any]]:
    """The rows of the result file, as they are measured."""
    for case in CASES:
        numbers = measured(case, seconds)
        say(f"{case.name}: " + ", ".join(f"{name} {value:.3g}" for name, value in numbers.items()))
        for name, value in numbers.items():
            setting = {"setting": case.name}
            yield {
                "setting": setting,
                "measure": name,
                "n": case.clients - 1,
                "mean": round(float(value), 4),
            }


def parser() -> argparse.ArgumentParser:
    """Of the options of this benchmark."""
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=_SECONDS, help="CPU time a client")
    options.add_argument("--record", action="store_true", help="write the result file")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all cases, and with ``--record`` write the result file."""
    options = parser().parse_args(arguments)
    start = time.process_time()
    rows = list(table(options.seconds))
    if not options.record:
        return
    said = json.loads(_RESULT.read_text(encoding="utf-8"))
    said |= made_here(time.process_time() - start)
    _RESULT.write_text(json.dumps(said | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
