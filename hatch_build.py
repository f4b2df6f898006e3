"""Build hook: in a wheel all packages lie below ``fedsim``; other projects use their names too.

A checkout keeps ``clients``, ``server``, ``attacks`` and ``experiments`` beside ``fedsim``.
"""

from __future__ import annotations

import ast
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PARTS = ("clients", "server", "attacks", "experiments")
_NAMES = "|".join(PARTS)
_DOTTED = re.compile(rf"({_NAMES})(\.\w+)+(:\w+)?")


class Below(BuildHookInterface):  # type: ignore[type-arg]
    """Ships a copy of the packages whose imports name them as parts of ``fedsim``."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the copy; an editable install stays as the checkout is."""
        if version == "editable":
            return
        root = Path(self.root)
        self._copy = Path(tempfile.mkdtemp())
        whole = self._copy / "fedsim"
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / "fedsim", whole, ignore=unwanted)
        for part in PARTS:
            shutil.copytree(root / part, whole / part, ignore=unwanted)
        for path in whole.rglob("*.py"):
            path.write_text(moved(path.read_text(encoding="utf-8"), root), encoding="utf-8")
        build_data["force_include"][str(whole)] = "fedsim"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy."""
        if version != "editable":
            shutil.rmtree(self._copy)


def moved(source: str, root: Path) -> str:
    """A module with its imports, and its strings that name modules, below ``fedsim``.

    Args:
        source: Python code.
        root: the checkout, to see which dotted names are modules.

    Raises:
        ValueError: an import or a string cannot be moved.
    """
    lines = source.splitlines(keepends=True)
    found = {_place(node, source, root) for node in ast.walk(ast.parse(source))}
    for number, column in sorted((place for place in found if place), reverse=True):
        line = lines[number].encode()  # as ``ast`` counts bytes of UTF-8
        lines[number] = (line[:column] + b"fedsim." + line[column:]).decode()
    return "".join(lines)


def _place(node: ast.AST, source: str, root: Path) -> tuple[int, int] | None:
    """Line and column at which the name of a moved module starts, in an import or a string."""
    if isinstance(node, ast.Import) and any(a.name.split(".")[0] in PARTS for a in node.names):
        raise ValueError(f"line {node.lineno}: write 'from ... import', which a wheel can move")
    if isinstance(node, ast.ImportFrom) and not node.level and node.module is not None:
        if node.module.split(".")[0] in PARTS:
            return node.lineno - 1, node.col_offset + len("from ")
        return None
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return None
    if _DOTTED.fullmatch(node.value) and _is_module(node.value.split(":")[0], root):
        before, name, _ = (ast.get_source_segment(source, node) or "").partition(node.value)
        if not name or "\n" in before:  # in parts, or with escapes
            raise ValueError(f"line {node.lineno}: write {node.value!r} as one plain literal")
        return node.lineno - 1, node.col_offset + len(before.encode())
    return None


def _is_module(name: str, root: Path) -> bool:
    path = root.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()
