"""One attack on one update, in this process."""

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attacks import attack_classes
from attacks.base import Attack, Job
from attacks.foreign.readings import best_reading
from experiments.captures.guess import Guess
from experiments.captures.update import Update
from fedsim.config.build import build, suggest
from fedsim.errors import ConfigError
from fedsim.visible import say

_SAID_EVERY = 10.0

OnStep: TypeAlias = Callable[[int, float, str | Tensor | None], object]
"""Step, objective, guess so far."""


def attack(
    victim: Update,
    name: str | Attack,
    *,
    budget: float = 600.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    quiet: bool = False,
    on_step: OnStep | None = None,
    **options: Any,  # noqa: ANN401
) -> Guess:
    """Reconstruct the private examples behind an update.

    Where the number of examples is not known, the client's claim is tried, and if that does not
    prove to be right, other numbers; the guess that fits the update best is returned. An attack
    that needs the number proves none, and keeps to the claim unless it refuses that.

    Args:
        victim: what the attacker sees.
        name: an attack of ``fedsim list attacks``, or an instance of its class.
        budget: seconds after which the best guess so far is returned.
        seed: from which the attack's randomness derives.
        device: where the attack computes.
        quiet: print no progress.
        on_step: called while the attack runs with its step, its objective and the guess so far: a
            text, images ``(image, channel, height, width)`` in [0, 1], or None where the attack has
            none before its end. An exception that it raises ends the attack.
        **options: of the attack, see ``fedsim describe``.

    Raises:
        CannotAttack: the update does not give what the attack needs.
        ConfigError: the attack or an option does not exist, or a value does not fit.

    Example:
        The pictures that a search for the ``victim`` of `fedsim.Update` has on its way:

        >>> pictures = []
        >>> def keep(step, objective, guess):
        ...     pictures.append(guess)
        >>> guess = fedsim.attack(victim, "dlg", steps=3, quiet=True, on_step=keep)
        >>> pictures[0].shape
        torch.Size([1, 1, 8, 8])
    """
    if not isinstance(victim, Update):
        raise ConfigError(
            f"attack: got {type(victim).__name__}. Pass an update: fedsim.Update.of(model, ...)."
        )
    check_budget(budget)
    label, chosen = _chosen(name, options)
    start = time.monotonic()
    job = Job(device=torch.device(device))
    job.report = StepPrinter("" if quiet else label, on_step)
    job.deadline = start + budget
    reconstruction = best_reading(victim.reply, victim.task, label, chosen, job, seed)
    return Guess.of(label, chosen, victim.task, reconstruction, time.monotonic() - start)


def check_budget(budget: float) -> None:
    """Raise ``ConfigError`` unless the seconds are positive."""
    if not budget > 0:
        raise ConfigError(f"budget: {budget} s leaves no time. Pass seconds above 0.")


def _chosen(name: str | Attack, options: dict[str, Any]) -> tuple[str, Attack]:
    known = attack_classes()
    if isinstance(name, Attack):
        label = next((key for key, cls in known.items() if cls is type(name)), "")
        if not label:
            return type(name).__name__, name
        options = {**vars(name), **options}
    elif isinstance(name, str):
        label = name
    else:
        raise ConfigError(f"attack: {name!r} is no attack. {suggest('', known)}")
    return label, build(known, {"name": label, **options}, f"attack {label!r}")


class StepPrinter:
    """Calls back, and with a label prints step and objective to stderr from time to time."""

    def __init__(self, label: str, on_step: OnStep | None = None) -> None:
        self._label, self._on_step, self._start = label, on_step, time.monotonic()
        self._said = self._start

    def __call__(self, step: int, objective: float, guess: str | Tensor) -> None:
        """Take the report of a step."""
        if self._on_step is not None:
            picture = guess.detach().cpu().clone() if isinstance(guess, Tensor) else None
            self._on_step(step, objective, guess or None if isinstance(guess, str) else picture)
        now = time.monotonic()
        if self._label and now - self._said >= _SAID_EVERY:
            self._said = now
            text = guess if isinstance(guess, str) else ""
            line = f"{self._label}: {now - self._start:.0f} s, step {step}, {objective:.3g} {text}"
            say(line.rstrip(), error=True, flush=True)
