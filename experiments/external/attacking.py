"""One attack on one update, in this process."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attacks import attack_classes
from attacks.base import Attack, Job, Reconstruction
from experiments.external.guess import Guess
from experiments.external.update import Update
from fedsim.build import build, suggest
from fedsim.errors import CannotAttack, ConfigError
from fedsim.records import Certificate
from fedsim.seeds import derive, generator, seeded
from fedsim.visible import say

_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of examples that are tried where none is known and none claimed, until one is proven."""
_SHARE = 0.5
"""Of the time left, what one of several numbers of examples gets."""
_TRIALS = 2
"""Numbers of examples by which it is judged whether an attack refuses."""
_LEVELS: tuple[Certificate, ...] = ("guess", "in_span", "consistent", "certified")
_GRANT = re.compile(r"Grant (it under \[server_knows\]|server_knows\.\w+)")
"""What an experiment file is told to do."""
_SET = re.compile(r"Set federation\.\w+ = \w+, or choose")
_PASS = "If the attacker knows it, pass it (Update.of(..., fact=value), or --knows fact=value)"
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
    that needs the number proves none, and keeps to the claim.

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
        The pictures that a search has on its way:

        >>> import fedsim, torch
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
        >>> def loss(network, batch):
        ...     return torch.nn.functional.cross_entropy(network(batch.inputs), batch.labels)
        >>> picture, label = torch.rand(1, 1, 8, 8), torch.tensor([3])
        >>> value = torch.nn.functional.cross_entropy(net(picture), label)
        >>> gradients = torch.autograd.grad(value, list(net.parameters()))
        >>> victim = fedsim.Update.of(net, gradients=gradients, loss=loss, image_shape=(1, 8, 8))
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
    job.report = Progress("" if quiet else label, on_step)
    found, assumed = best_reading(victim, label, chosen, job, budget=budget, seed=seed)
    return Guess.of(label, chosen, victim, found, assumed, time.monotonic() - start)


def best_reading(
    victim: Update, label: str, chosen: Attack, job: Job, *, budget: float, seed: int = 0
) -> tuple[Reconstruction, str]:
    """The reconstruction that fits the update best, and what was assumed for it; see ``attack``."""
    check_suits(label, chosen, victim)
    end = time.monotonic() + budget
    best: tuple[Reconstruction, str] | None = None
    refused: CannotAttack | None = None
    for seen, assumed in _readings(chosen, victim):
        # An attack that can do without the number proves a guess, and leaves time for others.
        share = 1.0 if "num_examples" in chosen.requires else _SHARE
        job.deadline = end - (1 - share) * (end - time.monotonic())
        try:
            found = (_run(chosen, label, seen, job, seed), assumed)
            _check_count(found[0], seen)
        except CannotAttack as error:
            refused = refused or error
            continue
        best = found if best is None or _fit(found[0]) > _fit(best[0]) else best
        if found[0].confidence is None or _fit(found[0])[0] == 1.0 or time.monotonic() >= end:
            break
    if best is None:
        assert refused is not None
        raise refused
    return best


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


def check_suits(label: str, chosen: Attack, victim: Update) -> None:
    """Raise ``CannotAttack`` if the data or the known facts rule the attack out.

    The number of examples may be unknown, as it is tried.
    """
    if victim.task.modality not in chosen.modalities:
        raise CannotAttack(
            f"it reconstructs {' and '.join(sorted(chosen.modalities))}, and this model takes "
            f"{victim.task.modality}",
            "fedsim.suited(victim) lists the attacks that suit.",
        )
    if chosen.infers != "rows":
        raise CannotAttack(
            f"it infers {chosen.infers}, and guesses no example", "Run it in an experiment."
        )
    missing = victim.observation.knowledge.missing(chosen.requires - {"num_examples"})
    if "auxiliary" in missing:
        raise CannotAttack(
            "it learns from public rows, which an update alone does not bring",
            "Run it in an experiment with [auxiliary].",
        )
    if missing:
        raise CannotAttack(
            f"it needs {', '.join(missing)}",
            f"Pass it if the attacker knows it: Update.of(..., {missing[0]}=...).",
        )


def _readings(chosen: Attack, victim: Update) -> Iterator[tuple[Update, str]]:
    """The update as each kind and with each number of examples to try, and what was assumed."""
    if victim.difference is None:
        yield from _counted(chosen, victim)
        return
    pairs = zip(_counted(chosen, victim), _counted(chosen, victim.difference), strict=True)
    for (seen, assumed), (other, _) in pairs:
        yield seen, assumed
        yield other, "; ".join(filter(None, (assumed, "the reply was read as a difference")))


def _counted(chosen: Attack, victim: Update) -> Iterator[tuple[Update, str]]:
    """The update with each number of examples to try."""
    seen = victim.observation
    if seen.knowledge.num_examples is not None:
        yield victim, ""
        return
    claim = victim.claimed_examples
    # Without a number first: copies of a text have its gradient, and a claim would bring them.
    needed = "num_examples" in chosen.requires
    counts: list[int | None] = [] if needed else [None]
    counts += [claim] if claim else []
    # Every client of a cohort has an example.
    if not (needed and claim):
        counts += [count for count in _COUNTS if count >= seen.knowledge.cohort]
    for count in dict.fromkeys(counts):
        if count is None:
            yield victim, ""
            continue
        known = seen.knowledge.model_copy(update={"num_examples": count})
        whose = "the client's claim" if count == claim else "tried, as the number is not known"
        held = f"{count} example{'s' * (count > 1)} ({whose})"
        yield replace(victim, observation=replace(seen, knowledge=known)), held


def _run(chosen: Attack, label: str, victim: Update, job: Job, seed: int) -> Reconstruction:
    """The attack on one reading; seeded as a job of an experiment is."""
    seen, task = victim.observation, victim.task
    with seeded(derive(seed, "attack", label, str(seen.key))):
        rng = generator(seed, "attack", seen.key.round, seen.key.client, label)
        if type(chosen).prepare is not Attack.prepare:
            job.prepared = chosen.prepare(seen, task, job, derive(seed, "prepare", label))
        try:
            (found,) = chosen.reconstruct([seen], task, [rng], job)
        except CannotAttack as error:
            advice = _SET.sub("Choose", _GRANT.sub(_PASS, error.advice))
            raise CannotAttack(error.reason, advice) from None
    return found


def _check_count(found: Reconstruction, victim: Update) -> None:
    """Refuse more examples than the attacker knows of, or than are claimed if it proves none.

    A row of a language model may hold several texts.
    """
    count, known = len(found.guess), victim.observation.knowledge.num_examples
    proven = _fit(found)[0] == 1.0
    most = known if known is not None or proven else victim.claimed_examples
    packed = proven and victim.task.spec.kind == "language-modelling"
    if most is not None and count > most and not packed:
        raise CannotAttack(
            f"it explains the update by {count} examples, and there are {most}",
            "Something else is in the update, or the model, its loss or the kind of the reply "
            "differs from the client's.",
        )


def first_refusal(chosen: Attack, label: str, victim: Update, job: Job) -> str:
    """Why an attack refuses an update whatever the number of examples; empty if it runs."""
    reason = ""
    for seen, _ in islice(_readings(chosen, victim), _TRIALS):
        try:
            _run(chosen, label, seen, job, 0)
        except CannotAttack as error:
            reason = reason or str(error)
        else:
            return ""
    return reason


def _fit(found: Reconstruction) -> tuple[float, float, float]:
    """How much the update speaks for a guess: share of certified examples, levels, objective."""
    levels = [_LEVELS.index(level) for level in found.confidence or ()]
    certified = sum(level == 3 for level in levels) / len(levels) if levels else 0.0
    mean = sum(levels) / len(levels) if levels else 0.0
    return certified, mean, -float("inf") if found.objective is None else -found.objective


class Progress:
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
