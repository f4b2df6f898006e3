"""The attacks that an experiment lists, checked and labelled."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from attacks import attack_classes
from experiments.plan.config import ExperimentConfig
from fedsim.config.build import build, changed_options, contained, options_of
from fedsim.defenses import build_chain
from fedsim.defenses.base import Distortion
from fedsim.errors import ConfigError
from fedsim.records import AttackKey


@dataclass(frozen=True)
class Entry:
    """One attack of an experiment.

    Attributes:
        label: the attack's name, and a hash of the options that differ from their defaults.
        table: name and options as written.
        options: all options as canonical JSON.
        adaptive: whether it uses the declared defense.
        estimates: distortions that it measures on the update itself.
        infers: ``rows`` or ``membership``.
    """

    label: str
    table: dict[str, Any]
    options: str
    adaptive: bool
    estimates: frozenset[Distortion] = frozenset()
    infers: str = "rows"

    @property
    def key(self) -> AttackKey:
        """As the rows name it."""
        return AttackKey(str(self.table["name"]), self.options, self.adaptive)


def entries(experiment: ExperimentConfig) -> list[Entry]:
    """The experiment's attacks, checked."""
    classes = attack_classes()
    checked: list[Entry] = []
    for where, table in _variants(experiment):
        attack = build(classes, table, where)
        label = str(table["name"])
        with contained(type(attack), where, label):
            options, changes = map(_canonical, (options_of(attack), changed_options(attack)))
            adaptive, _ = attack.is_adaptive, attack.grouped_by  # which ``plan`` asks for
        if changes != "{}":
            label += "-" + hashlib.sha256(changes.encode()).hexdigest()[:6]
        if label in {entry.label for entry in checked}:
            raise ConfigError(f"{where}: the same attack stands there twice. Remove one.")
        checked.append(Entry(label, table, options, adaptive, attack.estimates, attack.infers))
    return checked


def _canonical(options: dict[str, Any]) -> str:
    return json.dumps(options, sort_keys=True, separators=(",", ":"))


@cache
def allows_for(attacker: AttackKey, defense_options: str) -> bool:
    """Whether an attack models, told of it, or measures on the update all that a defense distorts.

    Args:
        attacker: by the name of its class; one that is not installed is taken at its word.
        defense_options: the chain's tables as canonical JSON.
    """
    attack = attack_classes().get(attacker.attack)
    if attack is None:
        return attacker.adaptive
    try:
        distortions = build_chain(json.loads(defense_options), "defenses").distortions
    except ConfigError:  # a foreign federation's own
        return False
    if not distortions:
        return attacker.adaptive
    granted = attack.uses if attacker.adaptive and attack.uses else frozenset()
    return distortions <= attack.estimates | granted


def _variants(experiment: ExperimentConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each attack as it stands, then with the options of each of its ``variants`` changed."""
    for i, whole in enumerate(experiment.attacks):
        where, table = f"attacks[{i}]", dict(whole)
        variants = table.pop("variants", [])
        yield where, table
        if not isinstance(variants, list) or not all(isinstance(v, dict) for v in variants):
            raise ConfigError(
                f"{where}.variants: {variants!r} does not fit. "
                "Write a list of tables of options, as [{ adaptive = true }]."
            )
        for j, changes in enumerate(variants):
            if "name" in changes:
                raise ConfigError(
                    f"{where}.variants[{j}].name: a variant is of the same attack. "
                    "List another attack under [[attacks]]."
                )
            yield f"{where}.variants[{j}]", {**table, **changes}
