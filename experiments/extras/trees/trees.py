"""``fedsim trees``: what the trees of a federation tell of its clients' rows."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsim.api import ConfigError
from fedsim.visible import say

if TYPE_CHECKING:
    from experiments.extras.trees.clients import Victim
    from experiments.extras.trees.sums import Facts


def trees(
    models: Annotated[
        list[Path], typer.Argument(metavar="CAPTURES|MODEL...", help="captures, or model files")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="write each client's rows as CSV")
    ] = None,
    like: Annotated[
        Path | None, typer.Option(metavar="CSV", help="rows that the server has, label last")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="private rows, client-N.csv, to score")
    ] = None,
    claimed: Annotated[
        int | None, typer.Option(metavar="N", help="rows of a client, where trees do not tell")
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="CPU time a client")] = 8.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object instead of text")
    ] = False,
) -> None:
    """Read XGBoost models, count rows and labels by leaf, and look for the rows behind them.

    Learning rate, penalty, counts and labels come from sums in closed form; rows, with an interval
    for every value, from the leaf of each in every tree, which the sums of some tens of rows leave
    no choice. With --truth they are scored, beside the private columns each in an order of its own.
    """
    from experiments.extras.trees.clients import read_victims

    if not seconds > 0:
        raise ConfigError(f"--seconds {seconds:g}: leaves no time. Write a number above 0.")
    results = []
    for victim in read_victims(models):
        results.append(_attack(victim, out, like, truth, claimed, seconds))
        if not as_json:
            say(_text(results[-1]))
    if as_json:
        say(json.dumps(results))


def _attack(
    victim: Victim,
    out: Path | None,
    like: Path | None,
    truth: Path | None,
    claimed: int | None,
    seconds: float,
) -> dict[str, Any]:
    """Attack a client, write its rows to ``out``, and score them against ``truth``."""
    from experiments.extras.trees.search import search
    from experiments.extras.trees.sums import read_facts
    from experiments.extras.trees.table import Schema, filled, intervals, read_table, write_rows

    names, name = victim.head.names, f"client-{victim.client}.csv"
    facts = read_facts(victim, claimed)
    if facts.rows is None:
        raise ConfigError("trees: no sum tells the number of rows. State it by --claimed.")
    known = read_table(like, names).values if like else None
    private = read_table(truth / name, names) if truth else None
    cells, guess = victim.cells(), search(victim, facts, seconds)
    schema = Schema.unknown(names, cells) if known is None else Schema.of(names, known)
    ends = intervals(cells, schema, guess)
    rows = filled(schema, guess, *ends)
    if out:
        write_rows(out / name, names, rows, *ends)
    result = {"client": victim.client, "trees": len(victim.grown), **_plain(facts)}
    result |= {"followed": guess.trees, "only": guess.proven, "cpu_seconds": guess.seconds}
    if private:
        from experiments.extras.trees.table import score, shuffled

        schema = Schema.of(names, private.values) if known is None else schema
        result["guess"] = asdict(score(private, rows, schema))
        result["own columns, shuffled"] = asdict(score(private, shuffled(private, 0), schema))
    return result


def _plain(facts: Facts) -> dict[str, Any]:
    arrays = {name: getattr(facts, name).tolist() for name in ("leaf_rows", "leaf_positive")}
    return vars(facts) | arrays


def _text(result: dict[str, Any]) -> str:
    labels = f", {sum(result['leaf_positive'])} with label 1" if result["leaf_positive"] else ""
    proof = "whole counts prove it" if result["proven"] else "not proven"
    lines = [
        f"client {result['client']}: {result['trees']} trees; eta {result['eta']:g}, "
        f"lambda {result['penalty']:g}, base score {result['base_score']:.6g}; "
        f"{result['rows']} rows{labels} ({proof})",
        f"  {_followed(result)}; {result['cpu_seconds']:.1f} CPU s",
    ]
    lines += [
        f"  {name}: {result[name]['values']:.1%} of the values, "
        f"{result[name]['rows']:.1%} of the rows"
        for name in ("guess", "own columns, shuffled")
        if name in result
    ]
    return "\n".join(lines)


def _followed(result: dict[str, Any]) -> str:
    if not result["followed"]:
        return "no rows have the sums of its first tree, as with noise or a part of the rows a tree"
    others = "no other rows have" if result["only"] else "other rows may have"
    return f"the leaf of each row in {result['followed']} of its trees; {others} these sums"
