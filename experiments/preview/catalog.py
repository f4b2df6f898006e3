"""Lists of all that an experiment can name, with one sentence each."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from experiments.plan.config import shipped
from fedsim.build import registry
from fedsim.toml_source import read_toml


def _sentences(classes: Mapping[str, object]) -> dict[str, str]:
    return {name: _first_sentence(inspect.getdoc(cls) or "") for name, cls in classes.items()}


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def attacks() -> Mapping[str, Any]:
    """The classes of the attacks."""
    from attacks import attack_classes

    return attack_classes()


def defenses() -> Mapping[str, Any]:
    """The classes of the defenses."""
    from fedsim.defenses import DEFENSES

    return registry(DEFENSES, "fedsim.defenses")


def metrics() -> Mapping[str, Any]:
    """The classes of the metrics."""
    from fedsim.metrics import METRICS

    return registry(METRICS, "fedsim.metrics")


def _metrics() -> dict[str, str]:
    classes = metrics()
    said = _sentences(classes)
    return {
        name: f"{said[name]} The attacker wants it {cls.attacker_wants}."
        for name, cls in classes.items()
    }


def _defenses() -> dict[str, str]:
    """By kind, in the order in which ``DefenseFamily`` names them."""
    from fedsim.defenses.base import DefenseFamily

    classes, families = defenses(), get_args(DefenseFamily)
    said = _sentences(classes)
    ordered = sorted(classes, key=lambda name: families.index(classes[name].family))
    return {name: f"[{classes[name].family}] {said[name]}" for name in ordered}


def _models() -> dict[str, str]:
    from fedsim.models import TEXT_MODELS, image_models

    by_name = _sentences(image_models())
    for name, folder in TEXT_MODELS.items():
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind, tokens = config["model_type"].upper(), config["vocab_size"]
        by_name[name] = f"A small {kind} with random weights and a tokenizer of {tokens} tokens."
    return {**by_name, "<hub id or folder>": "Any BERT-type or GPT-2-type model."}


def _datasets() -> dict[str, str]:
    from fedsim.data import DATASETS

    by_name = _sentences(DATASETS)
    known = (
        "uoft-cs/cifar10, uoft-cs/cifar100, ylecun/mnist, nyu-mll/glue:cola, nyu-mll/glue:sst2, "
        "cornell-movie-review-data/rotten_tomatoes, Salesforce/wikitext:wikitext-2-raw-v1, or any "
        "data set with an image or a text column."
    )
    return {**by_name, "<hub id or folder>": known}


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
    "attacks": lambda: _sentences(attacks()),
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
