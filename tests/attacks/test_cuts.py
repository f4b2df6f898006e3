"""Thresholds that accept or certify stand in ``cuts`` modules and reach a run's provenance."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

import attacks
from experiments.pipeline import execute
from tests.apps.cases import IMAGES, Make

ROOT = Path(attacks.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path.name != "cuts.py")
NUMBERS = (ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)


def constants(path: Path) -> dict[str, bool]:
    """Name of each numeric module-level constant -> whether a comment or a string explains it."""
    text = path.read_text(encoding="utf-8")
    lines, body = text.splitlines(), ast.parse(text).body
    found = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        leaves = [leaf for leaf in ast.walk(node.value) if not isinstance(leaf, NUMBERS)]
        if all(isinstance(x, ast.Constant) and isinstance(x.value, int | float) for x in leaves):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            found[node.targets[0].id] = said or "  # " in lines[node.lineno - 1]
    return found


def test_every_constant_elsewhere_says_what_it_bounds() -> None:
    found = {f"{path.name}: {k}": v for path in FILES for k, v in constants(path).items()}
    assert len(found) > 20
    assert [name for name, explained in found.items() if not explained] == []


@pytest.mark.parametrize("family", sorted(attacks.cuts()))
def test_each_cut_is_explained_and_used(family: str) -> None:
    table = import_module(f"attacks.{family}.cuts").CUTS
    names = {field.name for field in fields(table)}
    text = (ROOT / family / "cuts.py").read_text(encoding="utf-8")
    comment = r"^    (?:# .*\n    (\w+): .*|(\w+): .*  # .*)$"
    explained = {name for pair in re.findall(comment, text, re.MULTILINE) for name in pair if name}
    code = "".join(path.read_text(encoding="utf-8") for path in FILES)
    used = set(re.findall(r"\b(?:CUTS|OBSERVED)\.(\w+)", code))
    assert names == attacks.cuts()[family].keys() == explained
    assert names <= used


def test_each_family_with_cuts_is_listed() -> None:
    assert {path.parent.name for path in ROOT.rglob("cuts.py")} == attacks.cuts().keys()


def test_provenance_holds_the_cuts_of_the_attack_stage(make_run: Make) -> None:
    run = make_run(IMAGES)
    execute(run, ("simulate",), quiet=True)
    assert json.loads((run.root / "provenance.json").read_text())["cuts"] == {}
    for stages in (("attack",), ("score",)):
        execute(run, stages, quiet=True)
        noted = json.loads((run.root / "provenance.json").read_text())
        assert noted["cuts"] == attacks.cuts()
        assert noted["cuts"]["tokens"]["token_sine"] == 0.1
