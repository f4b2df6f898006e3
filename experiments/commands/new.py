"""``fedsim new``: a package or a file to begin with."""

import csv
import io
import keyword
import re
from collections.abc import Collection, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedsim.config.build import suggest
from fedsim.errors import ConfigError, StoreError
from fedsim.store.files import write_bytes
from fedsim.visible import say

CLASSES: Mapping[str, str] = {
    "attack": "ClassMean",
    "matching_attack": "GradientMatch",
    "text_attack": "LargestRows",
    "defense": "LaplacianNoise",
    "metric": "MeanAbsoluteError",
}
"""Kinds of packages, and the class of their template."""
TITLES: Mapping[str, str] = {
    "attack": "class mean",
    "matching_attack": "gradient match",
    "text_attack": "largest rows",
}
"""Titles of the templates' attacks, by which tables name them."""
KINDS = (*CLASSES, "dataset", "experiment")
_NAME = re.compile(r"[a-z][a-z0-9_]{1,39}")
_PROJECT = """[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"

[project.entry-points."fedsim.{group}"]
{name} = "{name}:{cls}"

[tool.setuptools]
py-modules = ["{name}"]
"""
_ROWS = (
    ("Lunch is at noon today.", "office"),
    ("The train leaves at nine.", "travel"),
    ("Please sign the new lease.", "office"),
    ("Our flight was delayed again.", "travel"),
)


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=", ".join(KINDS))],
    name: Annotated[str, typer.Argument(metavar="NAME", help="lower case, e.g. class_mean")],
) -> None:
    """Write an attack (three kinds), defense, metric, dataset or experiment to begin with.

    An attack, a defense and a metric are a package in a folder of that name: change its class, and
    pip install -e makes it known to every experiment. Each comes with an experiment that uses it.
    """
    if kind not in KINDS:
        raise ConfigError(f"new {kind!r}: there is no such template. {suggest(kind, KINDS)}")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r}: no name. Write lower-case letters, digits and underscores.")
    if kind in CLASSES and (keyword.iskeyword(name) or find_spec(name) is not None):
        raise ConfigError(f"{name!r}: Python has a module or a word of that name. Choose another.")
    if name in _taken(kind):
        raise ConfigError(f"{name!r}: fedsim knows one of that name. Choose another.")
    written = {Path(f"{name}.toml"): _text(f"{kind}.toml").replace("NAME", name)}
    if kind in CLASSES:
        written |= {Path(name, path): text for path, text in _package(kind, name).items()}
    elif kind == "dataset":
        written |= {Path(name, f"{split}.csv"): _table(split) for split in ("train", "test")}
    if known := [path for path in written if path.exists()]:
        raise ConfigError(f"{known[0]}: exists. Choose another name.")
    try:
        for path, text in written.items():
            write_bytes(path, text.encode())
    except StoreError:  # lest the same command finds its own files
        for path in written:
            path.unlink(missing_ok=True)
        raise
    install = f"pip install -e {name}, then " if kind in CLASSES else ""
    say(f"{', '.join(map(str, written))} written. Try: {install}fedsim run {name}.toml")


def _group(kind: str) -> str:
    """``attack`` of a ``text_attack``."""
    return kind.rpartition("_")[2]


def _taken(kind: str) -> Collection[str]:
    """Names that an installed package may not have."""
    from experiments.preview.manuals import KINDS, pages

    shelf = f"{_group(kind)}s"
    return pages(shelf) if shelf in KINDS else ()


def _text(file: str) -> str:
    return files("experiments.templates").joinpath(file).read_text("utf-8")


def _package(kind: str, name: str) -> dict[str, str]:
    cls = "".join(part.capitalize() for part in name.split("_"))
    code = _text(f"{kind}.py").replace(CLASSES[kind], cls)
    if kind == "metric":
        code = code.replace('"mae"', f'"{name}"')
    elif kind in TITLES:
        code = code.replace(f'"{TITLES[kind]}"', f'"{name.replace("_", " ")}"')
    group = f"{_group(kind)}s"
    project = _PROJECT.format(name=name, group=group, cls=cls)
    return {f"{name}.py": code, "pyproject.toml": project}


def _table(split: str) -> str:
    """Twenty messages for training and eight for a test, no two of them equal."""
    rows, text = range(20) if split == "train" else range(20, 28), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("text", "topic"))
    for row in rows:
        sentence, topic = _ROWS[row % len(_ROWS)]
        writer.writerow((f"Note {row}: {sentence}", topic))
    return text.getvalue()
