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
    from experiments.extras.trees.facts import Facts


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
    told = []
    for victim in read_victims(models):
        told.append(_attack(victim, out, like, truth, claimed, seconds))
        if not as_json:
            say(_text(told[-1]))
    if as_json:
        say(json.dumps(told))


def _attack(
    victim: Victim,
    out: Path | None,
    like: Path | None,
    truth: Path | None,
    claimed: int | None,
    seconds: float,
) -> dict[str, Any]:
    """Attack a client, write its rows to ``out``, and score them against ``truth``."""
    from experiments.extras.trees.facts import read_facts
    from experiments.extras.trees.search import search
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
    told = {"client": victim.client, "trees": len(victim.own), **_plain(facts)}
    told |= {"followed": guess.trees, "only": guess.proven, "cpu_seconds": guess.seconds}
    if private:
        from experiments.extras.trees.scoring import score, shuffled

        schema = Schema.of(names, private.values) if known is None else schema
        told["guess"] = asdict(score(private, rows, schema))
        told["own columns, shuffled"] = asdict(score(private, shuffled(private, 0), schema))
    return told


def _plain(facts: Facts) -> dict[str, Any]:
    arrays = {name: getattr(facts, name).tolist() for name in ("leaf_rows", "leaf_positive")}
    return vars(facts) | arrays


def _text(told: dict[str, Any]) -> str:
    labels = f", {sum(told['leaf_positive'])} with label 1" if told["leaf_positive"] else ""
    proof = "whole counts prove it" if told["proven"] else "not proven"
    lines = [
        f"client {told['client']}: {told['trees']} trees; eta {told['eta']:g}, lambda "
        f"{told['penalty']:g}, base score {told['base_score']:.6g}; {told['rows']} rows{labels} "
        f"({proof})",
        f"  {_followed(told)}; {told['cpu_seconds']:.1f} CPU s",
    ]
    lines += [
        f"  {name}: {told[name]['values']:.1%} of the values, {told[name]['rows']:.1%} of the rows"
        for name in ("guess", "own columns, shuffled")
        if name in told
    ]
    return "\n".join(lines)


def _followed(told: dict[str, Any]) -> str:
    if not told["followed"]:
        return "no rows have the sums of its first tree, as with noise or a part of the rows a tree"
    others = "no other rows have" if told["only"] else "other rows may have"
    return f"the leaf of each row in {told['followed']} of its trees; {others} these sums"
