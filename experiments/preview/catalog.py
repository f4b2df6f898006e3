"""Lists of all that an experiment can name, with one sentence each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from experiments.plan.config import shipped
from experiments.preview.manuals import added, pages, sentences
from fedsim.config.toml_source import read_toml


def _attacks() -> dict[str, str]:
    return {n: added("attacks", n) + page.sentence for n, page in pages("attacks").items()}


def _metrics() -> dict[str, str]:
    known = pages("metrics")
    marks = {name: added("metrics", name) for name in known}
    return {n: f"{marks[n]}{p.sentence} The attacker wants it {p.mark}." for n, p in known.items()}


def _defenses() -> dict[str, str]:
    """By kind, in the order in which ``DefenseFamily`` names them."""
    known = pages("defenses")
    families = list(dict.fromkeys(page.mark for page in known.values()))
    ordered = sorted(known, key=lambda name: families.index(known[name].mark))
    return {name: f"[{known[name].mark}] {known[name].sentence}" for name in ordered}


def _models() -> dict[str, str]:
    return {**sentences("models"), "<hub id or folder>": "Any BERT-type or GPT-2-type model."}


def _datasets() -> dict[str, str]:
    known = (
        "uoft-cs/cifar10, uoft-cs/cifar100, ylecun/mnist, nyu-mll/glue:cola, nyu-mll/glue:sst2, "
        "cornell-movie-review-data/rotten_tomatoes, Salesforce/wikitext:wikitext-2-raw-v1, or any "
        "data set with an image or a text column."
    )
    return {**sentences("datasets"), "<hub id or folder>": known}


def _experiments() -> dict[str, str]:
    by_name = {}
    for name, path in shipped().items():
        members = read_toml(path).get("suite")
        suite = f" (runs {', '.join(members)})" if members else ""
        by_name[name] = opening(path) + suite
    return by_name


def opening(path: Path) -> str:
    """The first sentence of the comments of an experiment file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    # "Zhu et al. 2019" does not end a sentence.
    return re.split(r"(?<=[.?]) (?=[A-Z])", comment)[0]


CATALOGS: dict[str, Callable[[], dict[str, str]]] = {
    "attacks": _attacks,
    "defenses": _defenses,
    "metrics": _metrics,
    "models": _models,
    "datasets": _datasets,
    "experiments": _experiments,
}


def counts() -> dict[str, str]:
    """How many entries each list has; a place for a name of one's own is none."""
    named = {
        what: sum(not name.startswith("<") for name in find()) for what, find in CATALOGS.items()
    }
    return {what: f"{count} of them: fedsim list {what}" for what, count in named.items()}
