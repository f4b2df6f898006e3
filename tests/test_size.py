"""Lines by room and by file stay within `budgets.toml`, and functions stay short.

A budget falls with what leaves its room; it rises only with a dated paragraph in docs/decisions.
Lines are saved by removing ideas, never by denser code, which is measured here as well.
"""

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = tomllib.loads((Path(__file__).parent / "budgets.toml").read_text(encoding="utf-8"))
PRODUCTION = ("attacks", "clients", "experiments", "fedsim", "server")
SPLIT = {"attacks", "benchmarks", "experiments", "fedsim", "tests"}
"""Packages whose folders are rooms of their own; of the others each is one room."""
SLACK = 200
"""Lines that a budget may exceed its room by: one that does has not been lowered. A quarter of it
would ask for a new budget with each small deletion; four times as much is a room's worth."""
STEP = 50


@cache
def lines() -> dict[str, int]:
    """Lines of each file, by its path in the checkout."""
    folders = (*PRODUCTION, "benchmarks", "docs", "tests")
    return {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def room(file: str) -> str:
    """``attacks/span`` of ``attacks/span/exact/search.py``; ``attacks`` of ``attacks/base.py``."""
    package, *inner = Path(file).parts[:-1]
    return f"{package}/{inner[0]}" if inner and package in SPLIT else package


@cache
def rooms() -> Counter[str]:
    totals: Counter[str] = Counter()
    for file, count in lines().items():
        totals[room(file)] += count
    return totals


@cache
def functions() -> list[tuple[int, str]]:
    """Lines of each function without its docstring, and where it stands."""
    files = [file for file in lines() if file.startswith(PRODUCTION)]
    return sorted(found for file in files for found in _functions(file))


@cache
def _nodes(file: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))))


def _functions(file: str) -> Iterator[tuple[int, str]]:
    for node in _nodes(file):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = len((ast.get_docstring(node, clean=False) or "").splitlines())
            end = node.end_lineno or node.lineno
            yield end - node.lineno + 1 - docstring, f"{file}: {node.name}"


def documentation() -> float:
    """Share of the lines of production that are docstrings."""
    documented = total = 0
    for file in (file for file in lines() if file.startswith(PRODUCTION)):
        total += lines()[file]
        for node in _nodes(file):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                documented += len((ast.get_docstring(node, clean=False) or "").splitlines())
    return documented / total


def test_budgets_and_rooms_have_the_same_names() -> None:
    assert sorted(BUDGETS["rooms"]) == sorted(rooms())
    assert list(BUDGETS["rooms"]) == sorted(BUDGETS["rooms"])


def test_no_room_is_larger_than_its_budget() -> None:
    over = {name: rooms()[name] - budget for name, budget in BUDGETS["rooms"].items()}
    assert not {name: more for name, more in over.items() if more > 0}, "remove an idea"


def test_budgets_fall_with_what_leaves_their_room() -> None:
    lower = [
        f'"{name}" = {-(-rooms()[name] // STEP) * STEP}'
        for name, budget in BUDGETS["rooms"].items()
        if budget - rooms()[name] > SLACK
    ]
    assert not lower, "write this into tests/budgets.toml"


def test_the_packages_together_keep_to_their_budgets() -> None:
    for package, budget in BUDGETS["packages"].items():
        size = sum(count for file, count in lines().items() if file.startswith(f"{package}/"))
        assert size <= budget, f"{package} has {size} lines, and its budget is {budget}"


def test_a_file_is_short() -> None:
    longest = {file: BUDGETS["files"].get(file, BUDGETS["style"]["file"]) for file in lines()}
    assert not {file: lines()[file] for file in lines() if lines()[file] > longest[file]}


def test_files_that_may_be_long_are_long() -> None:
    assert all(lines().get(file, 0) > BUDGETS["style"]["file"] for file in BUDGETS["files"])


def test_functions_are_as_short_as_ever() -> None:
    lengths = [length for length, _ in functions()]
    assert median(lengths) <= BUDGETS["style"]["function_median"]
    longest = [where for _, where in functions()[-10:]]
    assert quantiles(lengths, n=100)[-1] <= BUDGETS["style"]["function_99th"], longest
    assert lengths[-1] <= BUDGETS["style"]["function_longest"], longest[-1]


def test_lines_are_not_saved_on_what_explains_them() -> None:
    assert documentation() >= BUDGETS["style"]["docstring_share"]
