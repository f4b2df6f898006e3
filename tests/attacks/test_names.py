"""Names that say what a thing is, not that it was found, kept or left."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import attacks

ROOT = Path(attacks.__file__).parent
VAGUE = {"found", "told", "one", "own", "left", "kept", "made"}
MOST = 0.01
ROOMS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0].isalpha())


def bindings(tree: ast.AST) -> Iterator[str]:
    """Every name that a module binds: variables, arguments, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def is_vague(name: str) -> bool:
    return name.strip("_") in VAGUE


def test_bindings_of_all_kinds_are_counted() -> None:
    names = bindings(ast.parse("def f(own):\n    left, x = own\n    return [one for one in x]"))
    assert sorted(filter(is_vague, names)) == ["left", "one", "own"]


@pytest.mark.parametrize("room", ROOMS)
def test_few_names_are_vague(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    names = [name for path in files for name in bindings(ast.parse(path.read_text("utf-8")))]
    assert len(names) > 300
    vague = [name for name in names if is_vague(name)]
    assert len(vague) < MOST * len(names), sorted(vague)
