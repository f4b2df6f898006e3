"""Captures whose replies may take the place of a victim's; chosen without the truth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import torch

from experiments.plan.cells import Cell
from fedsim.knowledge import Knowledge
from fedsim.seeds import generator
from fedsim.store.capture import CaptureKey

Facts: TypeAlias = tuple[str, str]
"""Whether a capture is a client's or which kind of probe, and the granted knowledge as JSON."""
_TRIED = 8
"""Donors with equal facts that are drawn, as scoring leaves out those that share a row."""


@dataclass(frozen=True, slots=True)
class Donor:
    """A capture whose reply takes the place of a victim's.

    Attributes:
        key: the capture.
        job: number of the control job in which the victim is attacked with this reply; None where
            the granted facts of both are equal, so that the attack on the donor itself serves.
    """

    key: CaptureKey
    job: int | None = None

    def source(self, label: str, victim: CaptureKey) -> tuple[str, CaptureKey]:
        """Label and key under which the guess at the victim from this reply is kept."""
        return (label, self.key) if self.job is None else (control_label(label, self.job), victim)


def control_label(label: str, job: int) -> str:
    """Label of the control jobs of an attack; no attack's own label holds an ``@``."""
    return f"{label}@control-{job + 1}"


def donors(
    facts: Mapping[CaptureKey, Facts], seed: int, jobs: int
) -> dict[CaptureKey, tuple[Donor, ...]]:
    """For each capture the captures of the same kind whose replies may take its reply's place.

    They are drawn at random from the other clients of the round, or from the client's other rounds
    where it is alone: those of equal facts first, then as many others as lack to ``jobs``. Each
    victim draws for itself. In a permutation of the replies, such as the next client's, every guess
    would be used once, so that how good guesses are in general would cancel from any sum over
    clients, and a test of one control against another could never fail.

    Args:
        facts: of all captures of a cell, or of one round.
        seed: the cell's seed.
        jobs: attack runs that a victim's controls may cost.
    """
    rounds = _groups(facts, lambda key: (key.round, facts[key][0]))
    alone = {key: facts[key] for group in rounds if len(group) == 1 for key in group}
    groups = [group for group in rounds if len(group) > 1]
    groups += _groups(alone, lambda key: (key.client, facts[key][0]))
    return {key: drawn for group in groups for key, drawn in _of_group(group, facts, seed, jobs)}


def _of_group(
    group: Sequence[CaptureKey], facts: Mapping[CaptureKey, Facts], seed: int, jobs: int
) -> Iterator[tuple[CaptureKey, tuple[Donor, ...]]]:
    alike: dict[Facts, list[CaptureKey]] = defaultdict(list)
    for key in group:
        alike[facts[key]].append(key)
    for same in alike.values():
        lacking = max(0, jobs - len(same) + 1)
        places = {key: place for place, key in enumerate(group)}
        for place, key in enumerate(same):
            free = islice(_drawn(same, place, seed), _TRIED)
            others = (
                other for other in _drawn(group, places[key], seed) if facts[other] != facts[key]
            )
            costly = enumerate(islice(others, lacking))
            yield key, (*map(Donor, free), *(Donor(other, job) for job, other in costly))


def _drawn(group: Sequence[CaptureKey], place: int, seed: int) -> Iterator[CaptureKey]:
    """The others of a group in random order, by client the same one in each round."""
    rng = generator(seed, "control", group[place].client)
    order = torch.randperm(len(group), generator=rng).tolist()
    return (group[other] for other in order if other != place)


def _groups(
    facts: Mapping[CaptureKey, Facts], shared: Callable[[CaptureKey], tuple[int, str]]
) -> list[list[CaptureKey]]:
    groups: dict[tuple[int, str], list[CaptureKey]] = defaultdict(list)
    for key in facts:
        groups[shared(key)].append(key)
    return list(groups.values())


def donors_of(cell: Cell, round_: int | None = None) -> dict[CaptureKey, tuple[Donor, ...]]:
    """The donors of a cell's captures, or of those of one round."""
    store, config = cell.captures, cell.config
    facts = {
        key: (config.kind_of(key.client), _facts(store.record(key).knowledge))
        for key in store.keys()
        if round_ in (None, key.round)
    }
    return donors(facts, config.seed, cell.experiment.attack_stage.control_jobs)


def _facts(knowledge: Knowledge) -> str:
    """As JSON, without who the clients of a cohort are, which tells nothing of their rows."""
    return knowledge.model_dump_json(exclude={"members"})
