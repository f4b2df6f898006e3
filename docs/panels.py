"""What the pictures show: the victims of a run, by defense, under the attack that leaked most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from experiments.report.victims import victims

from experiments.plan.folder import Run
from experiments.report.gallery import Example, choose
from experiments.wording.defense_names import defense_name
from experiments.wording.names import title
from fedsim.records import MAIN, PRIOR_ONLY, Modality


@dataclass(frozen=True)
class Panel:
    """The examples of one defense by the attack that leaked most.

    Attributes:
        defense: its printed name.
        attack: the attack's printed name.
        examples: by round, client and position.
    """

    defense: str
    attack: str
    examples: dict[tuple[int, int, int], Example]


def examples_of(run: Run) -> list[Example]:
    """Every private example beside its guess; all that the pictures need beyond the rows."""
    return victims(run)


def rows_of(run: Run, modality: Modality) -> pd.DataFrame:
    """The scores of the victims themselves under FedSGD, by the main metric of the modality."""
    rows = pd.read_parquet(run.root / "scores.parquet")
    protocol = "fedsgd" if (rows.protocol == "fedsgd").any() else rows.protocol.iloc[0]
    return rows[
        (rows.protocol == protocol)
        & (rows.metric == MAIN[modality])
        & (rows.control == "none")
        & (rows.probe == "none")
    ]


def panels(run: Run, examples: Sequence[Example], modality: Modality) -> list[Panel]:
    """One panel for each defense that an attack met, the undefended one first."""
    rows = rows_of(run, modality)
    rows = rows[(rows.attack != PRIOR_ONLY) & rows.value.notna()]
    means = rows.groupby(["cell", "defense", "defense_options", "attack"], sort=False).value.mean()
    best: dict[tuple[str, str], tuple[float, str, str]] = {}
    for (cell, defense, options, attack), value in means.items():
        key = (str(defense), str(options))
        best[key] = max(best.get(key, (-math.inf, "", "")), (value, str(cell), str(attack)))
    found = []
    for (defense, options), (_, cell, attack) in best.items():
        own = {
            (e.key.round, e.key.client, e.index): e
            for e in examples
            if (e.cell, e.attack) == (cell, attack) and e.guess is not None
        }
        found.append(Panel(defense_name(defense, options), title(attack), own))
    return sorted(found, key=lambda panel: panel.defense != defense_name("none", "[]"))


def protected(defense: str) -> str:
    """A defense's printed name, which may be none."""
    return "no defense" if defense == defense_name("none", "[]") else defense


def chosen(shown: Sequence[Panel], modality: Modality, count: int) -> list[tuple[int, int, int]]:
    """Victims that every panel has, evenly spaced from the most to the least leaked undefended."""
    common = set.intersection(*(set(panel.examples) for panel in shown))
    ranked = choose([shown[0].examples[key] for key in sorted(common)], MAIN[modality], count)
    return [(e.key.round, e.key.client, e.index) for _, e in ranked]
