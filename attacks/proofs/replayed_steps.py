"""A client's local steps taken again on a guessed batch."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import factorial

import torch
from torch import Tensor, nn

from attacks.observed.declared import declared_training
from attacks.proofs.verdict import Proof, compare
from attacks.tokens.layout import batch_of
from fedsim.defenses.chain import Chain
from fedsim.local.client import LocalClient, mean_gradient
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors

Lines = Sequence[Sequence[int]]

_ORDERS = 24  # of the sentences, that are tried
_LOCAL_STEPS = 5e-3
"""The same of replayed local steps, since Adam divides small entries by their own size, rounding
included."""


@dataclass(frozen=True)
class Unrolled:
    """Compares an update with that of the client's local steps on a guess.

    After several steps, or one of Adam, an update is no multiple of a gradient, so that no gradient
    can prove a guess. The steps themselves can: the order of a client's examples is not known, but
    with one example a step, and few of them, each order is tried, as in Dimitrov et al. 2022 (Data
    Leakage in Federated Averaging), whose search is order-free for the same reason.

    Attributes:
        client: trains as the granted facts say, from the broadcast weights, in eval mode.
        observation: grants how the client trained.
    """

    client: LocalClient
    observation: Observation

    @classmethod
    def of(cls, observation: Observation, task: TextTask, network: nn.Module) -> Unrolled | None:
        """None where the granted facts do not tell the steps, or there are too many orders.

        Args:
            observation: of one client.
            task: a language model's.
            network: as broadcast, in float32.

        Raises:
            CannotAttack: the client trained with an option that this version does not have.
        """
        known = observation.knowledge
        steps, size, count = known.local_steps, known.batch_size, known.num_examples
        if None in (known.learning_rate, known.optimizer, known.training, known.local_steps, size):
            return None
        if known.train_mode is not False or known.defense != () or known.cohort > 1:
            return None
        if observation.kind == "gradient" or task.spec.num_classes:
            return None
        assert steps is not None
        assert size is not None
        ordered = steps == 1 or (size == 1 and factorial(steps) <= _ORDERS)
        if not ordered or count != steps * size:
            return None
        model = copy.deepcopy(network)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in observation.received)
        config, device = declared_training(observation), next(model.parameters()).device
        client = LocalClient(task, config, Chain(), seed=0, device=device, network=model)
        return cls(client, observation)

    def proof(self, lines: Lines) -> Proof:
        """How far the update of the steps on the lines, in their best order, is from the observed.

        The client knows the scale, hence none is fitted.
        """
        error = min(self._error(order) for order in self._orders(lines))
        return Proof(error, _LOCAL_STEPS)

    def _orders(self, lines: Lines) -> Iterator[Lines]:
        if self.observation.knowledge.local_steps == 1:
            yield lines
        else:
            yield from permutations(lines)

    def _error(self, lines: Lines) -> float:
        """``||U - V|| / ||U - W||`` of updates: as observed, of these lines, and without data."""
        seen, size = self.observation, self.client.config.batch_size
        batch = batch_of(lines, self.client.task, [-1] * len(lines))
        plan = [range(start, start + size) for start in range(0, len(lines), size)]
        update, idle = (
            client.defend(seen.sent, batch, plan, round_=1, client=0).update
            for client in (self.client, Idle(**vars(self.client)))
        )
        residual = whole = 0.0
        for name, value in update.items():
            goal = seen.update((name,))[name].to(value.device)
            residual += float((goal - value.double()).square().sum())
            whole += float((goal - idle[name].double()).square().sum())
        return float((residual / max(whole, 1e-30)) ** 0.5)


@dataclass(frozen=True)
class Idle(LocalClient):
    """A client without data: what weight decay and the pull to the broadcast weights do alone."""

    def gradient(
        self, model: nn.Module, batch: Batch, rng: torch.Generator
    ) -> tuple[Tensors, float]:
        """Zeros."""
        del batch, rng
        zeros = {k: torch.zeros_like(p) for k, p in model.named_parameters() if p.requires_grad}
        return zeros, 0.0


@dataclass(frozen=True)
class Weighted(LocalClient):
    """A client whose examples have weights, as clipping each gives them.

    Attributes:
        shares: weight of each example in a mean, ``(example,)``; their sum is 1.
    """

    shares: tuple[float, ...]

    def gradient(
        self, model: nn.Module, batch: Batch, rng: torch.Generator
    ) -> tuple[Tensors, float]:
        """The weighted mean, and no loss."""
        del rng
        total: Tensors = {}
        for i, share in enumerate(self.shares):
            single, _ = mean_gradient(self.task, self.config, model, batch[i])
            weighted = {name: share * value for name, value in single.items()}
            total = (
                {name: total[name] + value for name, value in weighted.items()}
                if total
                else weighted
            )
        return total, 0.0


def prove(
    observation: Observation,
    task: Task,
    batch: Batch,
    parts: Sequence[Collection[str]] = (),
    weights: Tensor | None = None,
) -> Proof:
    """Replay the client on a whole batch in float64 and compare.

    A gradient and one local step are replayed as they are, and so are several steps of a client
    whose every step takes the whole batch. No other client can be replayed, since the order of its
    examples is not known: it is compared as if it had made one step.

    Args:
        observation: of one client.
        task: defines the loss.
        batch: with the targets that the loss takes.
        parts: see ``attacks.proofs.verdict.compare``.
        weights: of the examples, since one may stand twice in a batch and clipping makes another
            one lighter, ``(example,)``; by default they are equal.

    Raises:
        CannotAttack: the client trained with an option that this version does not have.
    """
    device = batch.inputs.device
    network = task.model(observation.sent, device=device).double()
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in observation.received)
    config, plan = declared_training(observation), [range(len(batch))] * _whole_steps(observation)
    client = LocalClient(task, config, Chain(), seed=0, device=device, network=network)
    idle = Idle(**vars(client))
    if weights is not None:
        client = Weighted(**vars(client), shares=tuple((weights / weights.sum()).tolist()))
    update, rest = (
        each.defend(observation.sent, batch, plan, round_=1, client=0).update
        for each in (client, idle)
    )
    return compare(observation, update, parts, rest)


def _whole_steps(observation: Observation) -> int:
    """Local steps that all take the whole batch; 1 where this is not known of more."""
    known = observation.knowledge
    whole = known.num_examples and known.batch_size and known.num_examples <= known.batch_size
    granted = not known.missing(frozenset({"learning_rate", "local_steps"}), "counted")
    return known.local_steps or 1 if whole and granted else 1
