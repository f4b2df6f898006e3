"""A client's work in one round: a gradient for FedSGD, trained weights for FedAvg."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from clients.local_steps import make_optimizer, schedule
from fedsim.accountant import Schedule
from fedsim.capture import Kind
from fedsim.defenses.chain import Chain
from fedsim.defenses.encoding import Encoding
from fedsim.federation import FederationConfig
from fedsim.seeds import derive, generator, seeded
from fedsim.signals import TensorSignal, measure
from fedsim.tasks.base import Task, state
from fedsim.types import Batch, Rows, Tensors


@dataclass(frozen=True, slots=True)
class LocalUpdate:
    """Tensors of a reply, and the private facts behind them.

    Attributes:
        kind: ``gradient`` or ``weights``.
        tensors: gradients or trained weights; frozen parameters are absent.
        batch: the distinct examples used, in the order of their first use.
        positions: positions of these examples among the client's rows.
        all_rows: whether these are all the rows that the client owns.
        steps: examples of each local step, as indices into ``batch``.
        loss: mean training loss over the steps.
        signals: signal and packed size of each tensor under the defense, for the evaluator only.
        defense: name and options of each defense, the privacy budget turned into noise.
    """

    kind: Kind
    tensors: Tensors
    batch: Batch
    positions: tuple[int, ...]
    all_rows: bool
    steps: tuple[tuple[int, ...], ...]
    loss: float
    signals: dict[str, TensorSignal] = field(default_factory=dict)
    defense: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Defended:
    """Update of a client with and without its defenses.

    Attributes:
        tensors: gradients or trained weights that are sent; frozen parameters are absent.
        loss: mean training loss over the steps.
        update: the defended update behind ``tensors``, for parameters only.
        clean: the undefended update of the same steps: the mean gradient, or the change of the
            weights by undefended mean gradients, each taken at the weights that the defended steps
            reached.
    """

    tensors: Tensors
    loss: float
    update: Tensors
    clean: Tensors


@dataclass(frozen=True)
class LocalTrainer:
    """Local training as ``[federation]`` describes it, with the defenses of the cell.

    FedSGD (McMahan et al. 2017) computes the mean gradient of one batch. FedAvg takes local steps
    and sends the weights. Where a defense works on single gradients, each step uses their defended
    mean; defenses of the update are applied once, at the end.

    Attributes:
        seed: seed of the experiment; all randomness derives from (seed, round, client).
    """

    task: Task
    config: FederationConfig
    chain: Chain
    seed: int
    device: torch.device

    def run(self, sent: Tensors, rows: Rows, round_: int, client: int) -> LocalUpdate:
        """Train on the client's ``rows`` from the broadcast parameters ``sent``."""
        steps = schedule(self.config, self.seed, len(rows), round_, client)
        return self.fit(len(rows)).work(sent, rows, steps, round_, client)

    def work(
        self, sent: Tensors, rows: Rows, steps: Sequence[Sequence[int]], round_: int, client: int
    ) -> LocalUpdate:
        """Train on ``rows``, given the positions of each step; the defense is already fitted."""
        used = list(dict.fromkeys(position for step in steps for position in step))
        index = {position: i for i, position in enumerate(used)}
        plan = tuple(tuple(index[position] for position in step) for step in steps)
        batch = self.task.encode(rows.take(used))
        done = self.defend(sent, batch, plan, round_, client)
        kind: Kind = "gradient" if self.config.protocol == "fedsgd" else "weights"
        signals = measure(done.clean, done.update, self.chain.encode(Encoding()))
        whole, tables = len(used) == len(rows), self.chain.tables
        return LocalUpdate(
            kind, done.tensors, batch, tuple(used), whole, plan, done.loss, signals, tables
        )

    def fit(self, rows: int) -> LocalTrainer:
        """Trainer of a client with ``rows`` rows, its privacy budget turned into noise."""
        return replace(self, chain=self.chain.fit(Schedule.of(self.config, rows)))

    def reply(
        self,
        sent: Tensors,
        batch: Batch,
        plan: Sequence[Sequence[int]],
        round_: int,
        client: int,
    ) -> tuple[Tensors, float]:
        """The defended tensors that the client sends, and its training loss; see ``defend``."""
        done = self.defend(sent, batch, plan, round_, client)
        return done.tensors, done.loss

    def defend(
        self,
        sent: Tensors,
        batch: Batch,
        plan: Sequence[Sequence[int]],
        round_: int,
        client: int,
    ) -> Defended:
        """Train and apply the defenses.

        A defense whose noise depends on the client has to be fitted first.

        Args:
            sent: the broadcast parameters and buffers.
            batch: the distinct examples of the round.
            plan: examples of each local step, as indices into ``batch``.
            round_: number of the round, from 1; random numbers depend on it and on the client.
            client: number of the client, from 0.
        """
        model = self.task.model(sent, device=self.device)
        model.train(self.config.train_mode)
        self.chain.on_model(model)
        rng = generator(self.seed, "defense", round_, client)
        batch = batch.to(self.device)
        with seeded(derive(self.seed, "dropout", round_, client)):
            if self.config.protocol == "fedsgd":
                mean, clean, loss = self._gradient(model, batch, rng)
                update = self.chain.on_update(mean, rng)
                tensors = update
            else:
                clean_weights, loss = self._train(model, batch, plan, rng)
                trained = {k: p.detach() for k, p in model.named_parameters() if p.requires_grad}
                start = {name: sent[name].to(self.device) for name in trained}
                update = _difference(start, trained)
                clean = _difference(start, clean_weights) if clean_weights else update
                if self.chain.changes_update:  # otherwise the weights are sent unchanged
                    update = self.chain.on_update(update, rng)
                    trained = _difference(start, update)
                tensors = trained
        tensors = tensors | self._buffers(model)
        tensors = {name: value.detach().cpu() for name, value in tensors.items()}
        return Defended(tensors, loss, update, clean)

    def _gradient(
        self, model: nn.Module, batch: Batch, rng: torch.Generator
    ) -> tuple[Tensors, Tensors, float]:
        """Mean gradient with defenses, mean gradient without them, and mean loss.

        Both means are one tensor unless a defense needs gradients example by example.
        """
        batch = self.chain.on_batch(batch, rng)
        if not self.chain.per_example:
            gradient, loss = self._plain_gradient(model, batch)
            return gradient, gradient, loss
        total: Tensors = {}
        clean: Tensors = {}
        losses = []
        for gradient, loss in self.single_gradients(model, batch):
            clean = _sum(clean, gradient)
            total = _sum(total, self.chain.on_gradient(gradient, rng))
            losses.append(loss)
        total = self.chain.on_sum(total, rng)
        count = len(losses)
        return _mean(total, count), _mean(clean, count), sum(losses) / count

    def single_gradients(self, model: nn.Module, batch: Batch) -> Iterator[tuple[Tensors, float]]:
        """Gradient and loss of each example, one by one: few gradients fill a machine's memory."""
        for i in range(len(batch)):
            yield self._plain_gradient(model, batch[i])

    def _plain_gradient(self, model: nn.Module, batch: Batch) -> tuple[Tensors, float]:
        parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
        loss = self.task.loss(model, batch)
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        gradient = {
            name: torch.zeros_like(parameter) if part is None else part
            for (name, parameter), part in zip(parameters.items(), found, strict=True)
        }
        return gradient, loss.item()

    def _train(
        self, model: nn.Module, batch: Batch, plan: Sequence[Sequence[int]], rng: torch.Generator
    ) -> tuple[Tensors, float]:
        """Take the steps in place; return the undefended weights and the mean loss.

        The undefended weights result from the undefended gradients of the same steps; they are
        empty if no defense works on single gradients.
        """
        parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
        defended = self.chain.per_example
        shadow = {k: nn.Parameter(p.detach().clone()) for k, p in parameters.items() if defended}
        optimizers = [
            (chosen, make_optimizer(self.config, list(chosen.values())))
            for chosen in (parameters, shadow)
            if chosen
        ]
        losses = []
        for step in plan:
            *gradients, loss = self._gradient(model, batch[list(step)], rng)
            for (chosen, optimizer), gradient in zip(optimizers, gradients, strict=False):
                for name, parameter in chosen.items():
                    parameter.grad = gradient[name]
                optimizer.step()
            losses.append(loss)
        return {k: p.detach() for k, p in shadow.items()}, sum(losses) / len(losses)

    def _buffers(self, model: nn.Module) -> Tensors:
        """Batch statistics, which only training changes; empty unless they are sent."""
        if not self.config.train_mode or self.config.batch_statistics == "kept":
            return {}
        parameters = {name for name, _ in model.named_parameters()}
        return {name: value for name, value in state(model).items() if name not in parameters}


def _sum(total: Tensors, more: Tensors) -> Tensors:
    return {k: total[k] + value for k, value in more.items()} if total else more


def _mean(total: Tensors, count: int) -> Tensors:
    return {name: value / count for name, value in total.items()}


def _difference(first: Tensors, second: Tensors) -> Tensors:
    return {name: first[name] - value for name, value in second.items()}
