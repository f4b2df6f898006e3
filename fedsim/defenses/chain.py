"""Composition of a client's defenses."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fedsim.accountant import Schedule
from fedsim.config.build import options_of
from fedsim.defenses.base import Defense, Distortion, Step, Unit
from fedsim.defenses.encoding import Encoding
from fedsim.types import Batch, Tensors


@dataclass(frozen=True)
class Chain(Defense):
    """Several defenses, applied in order hook by hook; an empty chain changes nothing.

    Attributes:
        names: registered name of each defense.
        defenses: the defenses, in the order in which each hook is called.
    """

    names: tuple[str, ...] = ()
    defenses: tuple[Defense, ...] = ()

    @property
    def name(self) -> str:
        """The names joined by ``+``, or ``none``."""
        return "+".join(self.names) or "none"

    @property
    def tables(self) -> tuple[dict[str, Any], ...]:
        """Name and all options of each defense, as ``build_chain`` reads them."""
        return tuple(
            {"name": name, **options_of(defense)}
            for name, defense in zip(self.names, self.defenses, strict=True)
        )

    @property
    def options_json(self) -> str:
        """``tables`` as canonical JSON: a list of objects with sorted keys and without spaces."""
        return json.dumps(self.tables, sort_keys=True, separators=(",", ":"))

    @property
    def overclaims(self) -> str:
        """Those of the defenses."""
        return "; ".join(filter(None, (defense.overclaims for defense in self.defenses)))

    @property
    def per_example(self) -> bool:
        """True if any of the defenses needs gradients example by example."""
        return any(defense.per_example for defense in self.defenses)

    @property
    def changes_sum(self) -> bool:
        """True if any of the defenses changes the sum of single gradients."""
        return any(defense.changes_sum for defense in self.defenses)

    @property
    def changes_step(self) -> bool:
        """True if any of the defenses changes the mean gradient of a step."""
        return any(defense.changes_step for defense in self.defenses)

    @property
    def changes_update(self) -> bool:
        """True if any of the defenses changes what the client sends."""
        return any(defense.changes_update for defense in self.defenses)

    @property
    def remembers(self) -> bool:
        """True if any of the defenses does."""
        return any(defense.remembers for defense in self.defenses)

    @property
    def has_memory(self) -> bool:
        """True if a client keeps anything for its next round."""
        return self.remembers or any(defense.is_personal for defense in self.defenses)

    def stays(self, name: str) -> bool:
        """Whether that parameter never leaves the client, by any of the defenses."""
        return any(defense.stays(name) for defense in self.defenses)

    def fit(self, schedule: Schedule) -> Chain:
        """Fit each defense."""
        return replace(self, defenses=tuple(each.fit(schedule) for each in self.defenses))

    def on_model(self, model: nn.Module) -> None:
        """Let each defense change the model."""
        for defense in self.defenses:
            defense.on_model(model)

    def on_statistics(self, model: nn.Module) -> None:
        """Ask each defense."""
        for defense in self.defenses:
            defense.on_statistics(model)

    def on_batch(self, batch: Batch, model: nn.Module, rng: torch.Generator) -> Batch:
        """Apply ``on_batch`` of each defense to the result of the one before."""
        for defense in self.defenses:
            batch = defense.on_batch(batch, model, rng)
        return batch

    def on_gradient(self, gradient: Tensors, rng: torch.Generator) -> Tensors:
        """Apply ``on_gradient`` of each defense to the result of the one before."""
        for defense in self.defenses:
            gradient = defense.on_gradient(gradient, rng)
        return gradient

    def on_sum(self, total: Tensors, rng: torch.Generator) -> Tensors:
        """Apply ``on_sum`` of each defense to the result of the one before."""
        for defense in self.defenses:
            total = defense.on_sum(total, rng)
        return total

    def mean(self, gradients: Iterable[Tensors], rng: torch.Generator) -> Tensors:
        """Mean of the gradients of single examples, each of them and their sum defended."""
        total: Tensors = {}
        count = 0
        for gradient in gradients:
            gradient = self.on_gradient(gradient, rng)
            total = {name: total[name] + v for name, v in gradient.items()} if total else gradient
            count += 1
        return {name: value / count for name, value in self.on_sum(total, rng).items()}

    def on_step(self, gradient: Tensors, step: Step, rng: torch.Generator) -> Tensors:
        """Apply ``on_step`` of each defense to the result of the one before."""
        for defense in self.defenses:
            gradient = defense.on_step(gradient, step, rng)
        return gradient

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Apply ``on_update`` of each defense to the result of the one before."""
        for defense in self.defenses:
            update = defense.on_update(update, rng)
        return update

    def surrogate(self, update: Tensors) -> Tensors:
        """Composition of the surrogates."""
        for defense in self.defenses:
            update = defense.surrogate(update)
        return update

    def comparable(self, guess: Tensors, received: Tensors) -> tuple[Tensors, Tensors]:
        """``comparable`` of each defense, the last one first."""
        for defense in reversed(self.defenses):
            guess, received = defense.comparable(guess, received)
        return guess, received

    def recover(self, batch: Batch, model: nn.Module) -> Batch:
        """``recover`` of each defense, the last one first."""
        for defense in reversed(self.defenses):
            batch = defense.recover(batch, model)
        return batch

    def encode(self, packed: Encoding) -> Encoding:
        """Apply ``encode`` of each defense to the result of the one before."""
        for defense in self.defenses:
            packed = defense.encode(packed)
        return packed

    def slack(self, received: Tensors) -> Tensors:
        """Slack of the last defense that rounds; it makes the bounds of earlier ones irrelevant."""
        rounding = [each for each in self.defenses if "rounding" in each.distortions]
        return rounding[-1].slack(received) if rounding else super().slack(received)

    def epsilon_after(self, spent: Schedule) -> float | None:
        """Smallest epsilon that any of the defenses claims; later defenses are post-processing."""
        claims = [each.epsilon_after(spent) for each in self.defenses]
        return min((claim for claim in claims if claim is not None), default=None)

    @property
    def distortions(self) -> frozenset[Distortion]:
        """Distortions of all the defenses."""
        return frozenset().union(*(each.distortions for each in self.defenses))

    @property
    def unit(self) -> Unit | None:
        """The unit that epsilon protects; ``build_chain`` refuses two different ones."""
        return next((each.unit for each in self.defenses if each.unit is not None), None)
