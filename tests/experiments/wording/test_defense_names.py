"""Defenses are called by what tells them from their defaults, and no two by one name."""

import json
from typing import Any

import pytest

from experiments.wording.names import (
    compact,
    defense_name,
    family,
    short_options,
)
from fedsim.defenses import build_chain


def written(*tables: dict[str, Any]) -> tuple[str, str]:
    """The columns of the rows."""
    chain = build_chain(tables, "defenses")
    return chain.name, chain.options_json


@pytest.mark.parametrize(
    ("tables", "name"),
    [
        ((), "none"),
        (({"name": "sign"},), "sign"),
        (({"name": "prune", "fraction": 0.99},), "pruning (fraction=0.99)"),
        (({"name": "dp_sgd", "clip": 5.0, "epsilon": 1e5},), "DP-SGD (clip=5, ε=1e5)"),
        (
            ({"name": "gaussian_noise", "std": 1e-4, "stage": "sample"}, {"name": "sign"}),
            "Gaussian noise (stage=sample, std=1e-4) + sign",
        ),
    ],
)
def test_only_options_that_are_no_defaults_are_named(
    tables: tuple[dict[str, Any], ...], name: str
) -> None:
    assert defense_name(*written(*tables)) == name


def test_what_a_file_writes_and_what_the_rows_hold_have_one_name() -> None:
    table = {"name": "prune", "fraction": 0.9, "scope": "global"}
    assert defense_name("prune", json.dumps(table)) == defense_name(*written(table))


def test_an_unknown_defense_shows_every_option() -> None:
    text = '[{"name":"theirs","level":3,"mode":null}]'
    assert defense_name("theirs", text) == "theirs (level=3, mode=none)"
    assert defense_name("odd", "not JSON") == "odd (not JSON)"
    assert family("clip+dp_sgd") == "clipping + DP-SGD"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100000.0, "1e5"),
        (123456.0, "1.23456e5"),
        (5.0, "5"),
        (0.001, "0.001"),
        (0.00025, "2.5e-4"),
        (-2.5, "-2.5"),
        (0, "0"),
        (True, "true"),
        (None, "none"),
        ("mean", "mean"),
    ],
)
def test_numbers_are_short_and_lose_no_digit(value: object, text: str) -> None:
    assert compact(value) == text
    if isinstance(value, float):
        assert float(compact(value)) == value


def test_short_options_are_those_that_are_no_defaults() -> None:
    sampled = written({"name": "prune", "fraction": 0.9, "stage": "sample"})[1]
    assert short_options("prune", sampled) == "fraction=0.9, stage=sample"
