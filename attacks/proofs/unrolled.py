"""A client's local steps taken again on guessed sentences."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import factorial

from torch import nn

from attacks.proofs.certificate import batch_of
from fedsim.capture import Observation
from fedsim.local_optimizer import local_optimizer
from fedsim.tasks.text import TextTask

Lines = Sequence[Sequence[int]]

_ORDERS = 24  # of the sentences, that are tried
_ROUNDING = 5e-3  # largest error of a true batch: Adam makes much of the rounding of small entries
_PLAIN = {
    "precision": "float32",
    "accumulation": 1,
    "label_smoothing": 0.0,
    "max_grad_norm": 0.0,
    "schedule": "constant",
    "warmup_steps": 0,
    "proximal_mu": 0.0,
}


@dataclass(frozen=True)
class Unrolled:
    """Compares an update with that of the client's local steps on a guess.

    After several steps, or one of Adam, an update is no multiple of a gradient, so that no gradient
    can prove a guess. The steps themselves can: the order of a client's examples is not known, but
    with one example a step, and few of them, each order is tried, as in Dimitrov et al. 2022 (Data
    Leakage in Federated Averaging), whose search is order-free for the same reason.

    Attributes:
        task: a language model's.
        network: as broadcast, in float32 and eval mode.
        observation: grants how the client trained.
    """

    task: TextTask
    network: nn.Module
    observation: Observation

    @classmethod
    def of(cls, observation: Observation, task: TextTask, network: nn.Module) -> Unrolled | None:
        """None where the granted facts do not tell the steps, or there are too many orders."""
        known = observation.knowledge
        training, steps, size = known.training or {}, known.local_steps, known.batch_size
        plain = all(training.get(option) == value for option, value in _PLAIN.items())
        told = None not in {known.learning_rate, known.optimizer, steps, size}
        if not told or not plain or known.train_mode is not False or known.defense != ():
            return None
        if observation.kind == "gradient" or known.cohort > 1 or task.spec.num_classes:
            return None
        assert steps is not None
        assert size is not None
        ordered = steps == 1 or (size == 1 and factorial(steps) <= _ORDERS)
        if not ordered or known.num_examples != steps * size:
            return None
        return cls(task, network, observation)

    def proves(self, lines: Lines) -> bool:
        """Whether the steps on the lines, in some order, make the update."""
        return self.error(lines) <= _ROUNDING

    def error(self, lines: Lines) -> float:
        """``||U - V|| / ||U||`` for the update ``U`` and that of the best order of the lines."""
        return min(self._error(order) for order in self._orders(lines))

    def _orders(self, lines: Lines) -> Iterator[Lines]:
        if self.observation.knowledge.local_steps == 1:
            yield lines
        else:
            yield from permutations(lines)

    def _error(self, lines: Lines) -> float:
        """The error of the steps on batches of the lines, in their order."""
        known = self.observation.knowledge
        assert known.training is not None
        assert known.batch_size is not None
        model = copy.deepcopy(self.network)
        sent = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad_(name in self.observation.received).requires_grad:
                sent[name] = parameter
        optimizer = local_optimizer(
            known.optimizer or "",
            sent.values(),
            known.learning_rate or 0.0,
            momentum=known.training["momentum"],
            weight_decay=known.training["weight_decay"],
        )
        for start in range(0, len(lines), known.batch_size):
            batch = lines[start : start + known.batch_size]
            own = batch_of(batch, self.task, [-1] * len(batch))
            gradient = self.task.gradient(model, own.to(next(model.parameters()).device))
            for name, parameter in sent.items():
                parameter.grad = gradient[name]
            optimizer.step()
        left = whole = 0.0
        for name, moved in sent.items():
            seen = self.observation.update((name,))[name].to(moved.device)
            made = self.network.get_parameter(name).detach().to(seen) - moved.detach().to(seen)
            left += float((seen - made).square().sum())
            whole += float(seen.square().sum())
        return float((left / max(whole, 1e-30)) ** 0.5)
