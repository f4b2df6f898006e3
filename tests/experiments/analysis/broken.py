"""Verdicts on scores that are made up."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from experiments.analysis.evidence import Verdict
from experiments.analysis.frames import score_frame
from experiments.analysis.keys import DefenseInSetting, VictimKey
from experiments.analysis.paired import Scored
from experiments.analysis.verdicts import judge
from fedsim.records import OTHER_CLIENT, OTHER_CLIENTS, PRIOR_ONLY, AttackKey, Modality

NO_ROWS = score_frame([], {})
PLACE = DefenseInSetting("", "none", "[]")


ATTACK = AttackKey(attack="a", attack_options="{}", adaptive=False)


PRIOR = AttackKey(attack=PRIOR_ONLY, attack_options="{}", adaptive=False)


Floats = npt.NDArray[np.float64]


Parts = Mapping[str, Sequence[Floats]]
"""Metric -> the attack, prior only, another client's update, other clients, ``(client,)`` each."""


def scores(
    own: Floats,
    prior: Floats,
    other: Floats,
    others: Floats | None = None,
    *,
    seeds: int = 1,
    sure: Sequence[int] = (),
) -> list[Scored]:
    """An attack and its two or three nulls, one victim a client and seed."""

    def victims(values: Floats) -> dict[VictimKey, float]:
        return {
            VictimKey(seed, i // seeds, 0, 0, i): float(values[i])
            for i in range(len(values))
            for seed in [i % seeds]
        }

    proven = frozenset(list(victims(own))[i] for i in sure)
    return [
        Scored(PLACE, ATTACK, "none", victims(own), certified=proven),
        Scored(PLACE, PRIOR, "none", victims(prior)),
        Scored(PLACE, ATTACK, OTHER_CLIENT, victims(other)),
        *([] if others is None else [Scored(PLACE, ATTACK, OTHER_CLIENTS, victims(others))]),
    ]


def judged(
    parts: Parts,
    modality: Modality,
    *,
    seeds: int = 1,
    sure: Sequence[int] = (),
    works: bool = True,
) -> Verdict:
    known = {name: scores(*values, seeds=seeds, sure=sure) for name, values in parts.items()}
    working = {ATTACK: ""} if works else {}
    return judge(PLACE, score_frame([], {}), known, modality, working=working)


def in_full_rounds(parts: Parts) -> Parts:
    """The same, where no text was guessed for any other client of the round."""
    hits = list(parts["exact_match"])
    return {**parts, "exact_match": [*hits, np.zeros(len(hits[0]))]}


def texts(clients: int, exact: int, seed: int = 0) -> Parts:
    """``exact`` sentences come back word for word, the others as blind guesses do."""
    rng = np.random.default_rng(seed)
    guess = [np.clip(rng.normal(0.1, 0.05, clients), 0, 1) for _ in range(3)]
    hits = np.zeros(clients)
    guess[0][:exact] = hits[:exact] = 1.0
    return {"rougeL": guess, "exact_match": (hits, np.zeros(clients), np.zeros(clients))}


def images(clients: int, exact: int, gain: float = 0.0, scatter: float = 1.0) -> Parts:
    rng = np.random.default_rng(1)
    mean = rng.normal(12.5, scatter, clients)
    own = mean + gain + rng.normal(0, 0.1, clients)
    other = mean - 1 + rng.normal(0, 0.1, clients)
    own[:exact] = 100.0
    psnr = (own, mean, other)
    return {"psnr": psnr, "mse": [10 ** (-x / 10) for x in psnr]}
