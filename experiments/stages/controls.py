"""The mismatched updates behind an attack's null baseline."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from experiments.plan.cells import Cell
from experiments.stages.donors import Donor, donors_of
from fedsim.api.victims import Victims
from fedsim.metrics.tokens import Tokens
from fedsim.records import CONTROLS
from fedsim.store.capture import CaptureKey


def controls(victims: Victims[Cell]) -> dict[CaptureKey, dict[str, Donor]]:
    """For each capture and control a donor that shares no row with it; fewer where there is none.

    An attack depends on its observation alone, so that its guess at a donor with equal facts is the
    guess that it makes when the victim's reply is exchanged for the donor's.
    """
    rows = {key: frozenset(record.rows) for key, record in victims.records.items()}
    by_key = {}
    for key, known in donors_of(victims.cell).items():
        apart = [donor for donor in known if rows[key].isdisjoint(rows[donor.key])]
        by_key[key] = dict(zip(CONTROLS, apart, strict=False))
    return by_key


def guessed_for_others(
    guesses: Mapping[CaptureKey, Sequence[Tokens]], texts: Mapping[CaptureKey, Sequence[Tokens]]
) -> dict[CaptureKey, list[bool]]:
    """For each private text whether the attack guessed it for another client of the round.

    An attack that guesses from a list of likely texts, and is right by chance, is as right about
    others. Guesses of a text for those who hold it do not count. Left out are captures of rounds
    in which nothing was guessed for another client.

    Args:
        guesses: all that the attack guessed from each capture, where it guessed.
        texts: the private texts of each capture.
    """
    asked = defaultdict(set)
    clients: defaultdict[tuple[int, Tokens], set[int]] = defaultdict(set)
    for key, guessed in guesses.items():
        asked[key.round].add(key.client)
        for text in {*guessed} - {*texts[key]}:
            clients[key.round, text].add(key.client)
    return {
        key: [bool(clients[key.round, text] - {key.client}) for text in private]
        for key, private in texts.items()
        if asked[key.round] - {key.client}
    }


def nearest_for_others(
    guesses: Mapping[CaptureKey, Tensor],
    images: Mapping[CaptureKey, Tensor],
    rows: Mapping[CaptureKey, Sequence[int]],
) -> dict[CaptureKey, list[float]]:
    """For each private image the least squared error of a guess at another client of the round.

    Guesses at clients who hold the same row do not count.

    Args:
        guesses: all that the attack guessed from each capture, where it guessed, in [0, 1].
        images: the private ones of each capture, ``(image, channel, height, width)``.
        rows: of the private images.
    """
    nearest: dict[CaptureKey, list[float]] = {}
    for key, private in images.items():
        others = [
            (other, guess)
            for other, guess in guesses.items()
            if other.round == key.round and other.client != key.client
        ]
        if others:
            flat = private.flatten(1).double()
            errors = {o: torch.cdist(flat, g.flatten(1).double()).square() for o, g in others}
            nearest[key] = [
                min(
                    (
                        float(error[i].min()) / flat.shape[1]
                        for other, error in errors.items()
                        if rows[key][i] not in rows[other]
                    ),
                    default=math.inf,
                )
                for i in range(len(flat))
            ]
    return nearest
