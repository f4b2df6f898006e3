"""Score tables of which the right word is known: attacks that read nothing, and ones that do."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from experiments.analysis.keys import DefenseInSetting, VictimKey
from experiments.analysis.paired import Scored, scored
from experiments.analysis.verdicts import LABELS
from fedsim.records import CONTROLS, OTHER_CLIENT, OTHER_CLIENTS, PRIOR_ONLY, AttackKey

Floats: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = np.random.Generator
Table: TypeAlias = dict[str, list[Scored]]
Draw: TypeAlias = Callable[[Numbers, int, int], Table]
"""(numbers, clients, attacks) -> metric -> scores."""
NONE = DefenseInSetting("", "none", "[]")
_BLIND = AttackKey(PRIOR_ONLY, "{}", adaptive=False)


def attack(number: int) -> AttackKey:
    """A plug-in that is not installed, hence taken at its word."""
    return AttackKey("a", json.dumps({"i": number}), adaptive=True)


def noise(rng: Numbers, clients: int, attacks: int, *, skewed: bool = False) -> Table:
    """Images guessed as well from any update, with a scatter of 1 dB.

    Skewed: with leads that are exponential, where few guesses are much better than most.
    """
    base = rng.normal(12.5, 1, clients)
    known = [_scored(_BLIND, "none", base)]
    for number in range(attacks):
        for control in ("none", OTHER_CLIENT):
            lead = rng.exponential(2, clients) - 1 if skewed else rng.normal(0, 1, clients)
            known.append(_scored(attack(number), control, base + lead))
    return {"psnr": known}


def lists(rng: Numbers, clients: int, attacks: int, *, alone: bool = False) -> Table:
    """Texts drawn from a list, each right with a chance of .02; alone: one client a round."""
    size, truth = 50, np.arange(clients)
    blind = rng.uniform(0.05, 0.3, clients)
    rouge, exact = [_scored(_BLIND, "none", blind)], [_scored(_BLIND, "none", 0 * blind)]
    for number in range(attacks):
        key = attack(number)
        own, other = (rng.integers(0, size, clients) for _ in range(2))
        for control, guess in (("none", own), (OTHER_CLIENT, other)):
            hit = (guess == truth).astype(float)
            near = np.where(hit > 0, 1.0, rng.uniform(0.05, 0.3, clients))
            rouge.append(_scored(key, control, near))
            exact.append(_scored(key, control, hit))
        if not alone:
            same = own[:, None] == truth
            np.fill_diagonal(same, val=False)
            exact.append(_scored(key, OTHER_CLIENTS, same.any(0).astype(float)))
    return {"rougeL": rouge, "exact_match": exact}


def class_means(rng: Numbers, clients: int, attacks: int) -> Table:
    """The class is read and its mean image returned: 1.25 dB, and nothing of the image."""
    base = rng.normal(12, 1, clients)
    psnr, labels = [_scored(_BLIND, "none", base)], [_scored(_BLIND, "none", _hits(rng, clients))]
    for number in range(attacks):
        key = attack(number)
        psnr.append(_scored(key, "none", base + rng.normal(1.25, 0.8, clients)))
        psnr.append(_scored(key, OTHER_CLIENT, base + rng.normal(-0.9, 0.8, clients)))
        labels.append(_scored(key, "none", np.ones(clients)))
        labels.append(_scored(key, OTHER_CLIENT, _hits(rng, clients)))
    return {"psnr": psnr, LABELS: labels}


def samples(rng: Numbers, clients: int, attacks: int) -> Table:
    """Samples of a language model: as many words right by chance as from any update."""
    length = rng.integers(4, 20, clients)
    blind = rng.binomial(length, 0.12) / length
    rouge, exact = [_scored(_BLIND, "none", blind)], [_scored(_BLIND, "none", 0 * blind)]
    for number in range(attacks):
        for control in ("none", OTHER_CLIENT):
            score = rng.binomial(length, 0.15) / length
            rouge.append(_scored(attack(number), control, score))
            exact.append(_scored(attack(number), control, (score >= 1).astype(float)))
    return {"rougeL": rouge, "exact_match": exact}


def cut_short(rng: Numbers, clients: int, attacks: int, *, better: bool) -> Table:
    """Images guessed as well from any update, a class of jobs 3 dB above the blind guess.

    Of the attacks' jobs 70 % are in it, of the controls' 30 %: those cut short if ``better``.
    """
    base, whole = rng.normal(12.5, 1, clients), np.full(clients, "done")
    jobs = [(_BLIND, "none", whole, base)]
    for number in range(attacks):
        for control, share in (("none", 0.7), *((control, 0.3) for control in CONTROLS)):
            good = rng.random(clients) < share
            values = base + 3 * good + rng.normal(0, 1, clients)
            cut = np.where(good == better, "timeout", "done")
            jobs.append((attack(number), control, cut, values))
    same = {"cell": "c", "probe": "none", "metric": "psnr", "has_value": True, "certified": None}
    same |= dict.fromkeys(("seed", "round", "example"), 0) | NONE._asdict()
    same |= dict.fromkeys(("client", "row"), np.arange(clients))
    parts = [
        pd.DataFrame(same | asdict(key) | {"control": control, "status": status, "value": values})
        for key, control, status, values in jobs
    ]
    return {"psnr": scored(pd.concat(parts, ignore_index=True), "psnr")}


def readable(rng: Numbers, clients: int, attacks: int) -> Table:
    """Of every twentieth client the image is 8 dB better, and not recognisable; scatter 1 dB."""
    table = noise(rng, clients, attacks)
    values = dict(table["psnr"][1].values)
    for victim in [v for v in values if v.client % 20 == 0]:
        values[victim] += 8.0
    first = table["psnr"][1]
    table["psnr"][1] = Scored(first.place, first.attacker, first.control, values)
    return table


NULLS: Mapping[str, Draw] = {
    "images, normal scatter": noise,
    "images, skewed": partial(noise, skewed=True),
    "lists of texts, full rounds": lists,
    "lists of texts, a client a round": partial(lists, alone=True),
    "mean image of the class": class_means,
    "samples of a language model": samples,
    "some jobs cut short, better": partial(cut_short, better=True),
    "some jobs cut short, worse": partial(cut_short, better=False),
}
"""Attacks that read no row."""


def _hits(rng: Numbers, clients: int) -> Floats:
    return (rng.random(clients) < 0.1).astype(float)


def _scored(key: AttackKey, control: str, values: Floats) -> Scored:
    victims = (VictimKey(0, client, 0, 0, client) for client in range(len(values)))
    return Scored(NONE, key, control, dict(zip(victims, values.tolist(), strict=True)))
