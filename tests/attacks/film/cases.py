"""A quick FILM and its guesses."""

import torch

from attacks.base import Job, Reconstruction
from attacks.film.film import FILM
from fedsim.store.capture import Observation
from fedsim.tasks.language_modelling import LanguageModelling
from tests.attacks.victims import Victim

QUICK = FILM(phrase_steps=3, token_steps=3, beams=8, candidates=16)


def task_of(victim: Victim) -> LanguageModelling:
    assert isinstance(victim.task, LanguageModelling)
    return victim.task


def attack(
    victim: Victim, seen: Observation, film: FILM = QUICK, seed: int = 0, job: Job | None = None
) -> Reconstruction:
    rng = torch.Generator().manual_seed(seed)
    (guess,) = film.reconstruct([seen], victim.task, [rng], job or Job())
    return guess
