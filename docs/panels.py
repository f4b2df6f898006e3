"""Contents of the pictures: a run's victims by defense, under the strongest attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from experiments.plan.folder import Run
from experiments.stages.gallery import Shown, ranks
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
    examples: dict[tuple[int, int, int], Shown]


def rows_of(run: Run, modality: Modality) -> pd.DataFrame:
    """The scores of the victims themselves by the main metric; under FedSGD if it was run."""
    rows = pd.read_parquet(run.root / "scores.parquet")
    rows = rows[(rows.metric == MAIN[modality]) & (rows.control == "none") & (rows.probe == "none")]
    protocol = "fedsgd" if (rows.protocol == "fedsgd").any() else rows.protocol.iloc[0]
    return rows[rows.protocol == protocol]


def panels(run: Run, examples: Sequence[Shown], modality: Modality) -> list[Panel]:
    """One panel for each defense, by the strongest attack that guessed every victim.

    The undefended one comes first. A defense that refuses every attack has none.
    """
    rows = rows_of(run, modality)
    rows = rows[rows.attack != PRIOR_ONLY]
    groups = rows.groupby(["cell", "defense", "defense_options", "attack"], sort=False).value
    means = groups.mean()[groups.count() == groups.size()]
    best: dict[tuple[str, str], tuple[float, str, str]] = {}
    for (cell, defense, options, attack), value in means.items():
        key = (str(defense), str(options))
        best[key] = max(best.get(key, (-math.inf, "", "")), (value, str(cell), str(attack)))
    drawn = []
    for (defense, options), (_, cell, attack) in best.items():
        victims = {
            (e.round, e.client, e.example): e
            for e in examples
            if (e.cell, e.attack) == (cell, attack) and e.guess is not None
        }
        drawn.append(Panel(defense_name(defense, options), title(attack), victims))
    return sorted(drawn, key=lambda panel: panel.defense != defense_name("none", "[]"))


def chosen(shown: Sequence[Panel], count: int) -> list[tuple[int, int, int]]:
    """Victims that every panel has, evenly spaced from the most to the least leaked undefended."""
    common = set.intersection(*(set(panel.examples) for panel in shown))
    ranked = sorted(common, key=lambda key: shown[0].examples[key].rank)
    return [ranked[rank - 1] for rank in ranks(len(ranked), count)]
