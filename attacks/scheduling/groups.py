"""One attack on a group of observations, which falls apart where it cannot be attacked together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from attacks.base import Attack, Job, Reconstruction
from attacks.scheduling.jobs import JobSpec
from attacks.scheduling.outcomes import AttackOutcome, is_out_of_memory
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.seeds import generator
from fedsim.tasks.base import Task

HALVED = "the memory did not hold all victims at once, so that the group was halved"


def reconstruct(
    attack: Attack, group: Sequence[Observation], task: Task, job: Job, spec: JobSpec
) -> Sequence[AttackOutcome]:
    """A guess for each observation, or the error that rules it out.

    One that cannot be attacked does not prevent attacks on the others. Where memory runs out the
    group is halved, which its guesses note and which changes their rounding. A client's rounds stay
    together.
    """
    rngs = [generator(spec.seed, "attack", o.key.round, o.key.client, spec.label) for o in group]
    try:
        return attack.reconstruct(group, task, rngs, job)
    except CannotAttack as error:
        if len(group) == 1:
            return [error]
        parts, note = [[own] for own in group], ""
    except Exception as error:
        if attack.grouped_by in ("same_client", "whole_run") or not is_out_of_memory(error):
            raise
        if len(group) == 1:
            return [error]
        half = len(group) // 2
        parts, note = [list(group[:half]), list(group[half:])], HALVED
    if job.device.type == "cuda":
        torch.cuda.empty_cache()
    found = [one for part in parts for one in reconstruct(attack, part, task, job, spec)]
    return [_noted(one, note) for one in found]


def _noted(outcome: AttackOutcome, note: str) -> AttackOutcome:
    if not isinstance(outcome, Reconstruction) or note in outcome.note:
        return outcome
    return replace(outcome, note="; ".join(filter(None, (outcome.note, note))))
