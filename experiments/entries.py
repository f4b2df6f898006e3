"""The attacks that an experiment lists, checked and labelled."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from attacks import attack_classes
from experiments.config import ExperimentConfig
from fedsim.build import build, options_of
from fedsim.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """One attack of an experiment.

    Attributes:
        label: the attack's name; with options other than the defaults, and a hash of them.
        table: name and options as written.
        options: all options as canonical JSON.
        adaptive: whether it uses the declared defense.
    """

    label: str
    table: dict[str, Any]
    options: str
    adaptive: bool


def entries(experiment: ExperimentConfig) -> list[Entry]:
    """The experiment's attacks, checked."""
    classes = attack_classes()
    found: list[Entry] = []
    for i, table in enumerate(experiment.attacks):
        attack = build(classes, table, f"attacks[{i}]")
        options = json.dumps(options_of(attack), sort_keys=True, separators=(",", ":"))
        label = str(table["name"])
        if attack != type(attack)():
            label += "-" + hashlib.sha256(options.encode()).hexdigest()[:6]
        if label in {entry.label for entry in found}:
            raise ConfigError(f"attacks[{i}]: the same attack stands there twice. Remove one.")
        found.append(Entry(label, table, options, attack.is_adaptive))
    return found
