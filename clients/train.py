"""What one client computes in one round: a gradient for FedSGD, trained weights for FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedsim.accountant import Schedule
from fedsim.capture import Kind
from fedsim.cell import FederationConfig
from fedsim.defenses.chain import Chain
from fedsim.seeds import derive, generator
from fedsim.tasks.base import Task, state
from fedsim.types import Batch, Rows, Tensors


@dataclass(frozen=True, slots=True)
class LocalUpdate:
    """The reply's tensors and the private facts behind them.

    Attributes:
        tensors: gradients, or trained weights; frozen parameters are absent.
        batch: the distinct examples used, in the order of their first use.
        positions: their positions among the client's rows.
        steps: for each local step the examples it used, as indices into ``batch``.
        loss: mean training loss over the steps.
    """

    kind: Kind
    tensors: Tensors
    batch: Batch
    positions: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    loss: float


@dataclass(frozen=True)
class LocalTrainer:
    """One client's training as ``[federation]`` says, with the defenses of the cell.

    Attributes:
        seed: of the experiment; all randomness is drawn from (seed, round, client).
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
        """Train on ``rows``, the positions of each step given; the defense has been fitted."""
        used = list(dict.fromkeys(position for step in steps for position in step))
        index = {position: i for i, position in enumerate(used)}
        plan = tuple(tuple(index[position] for position in step) for step in steps)
        batch = self.task.encode(rows.take(used))
        tensors, loss = self.reply(sent, batch, plan, round_, client)
        kind: Kind = "gradient" if self.config.protocol == "fedsgd" else "weights"
        return LocalUpdate(kind, tensors, batch, tuple(used), plan, loss)

    def fit(self, rows: int) -> LocalTrainer:
        """The trainer of a client with so many rows, who turns a privacy budget into noise."""
        return replace(self, chain=self.chain.fit(Schedule.of(self.config, rows)))

    def reply(
        self,
        sent: Tensors,
        batch: Batch,
        plan: Sequence[Sequence[int]],
        round_: int,
        client: int,
    ) -> tuple[Tensors, float]:
        """The defended tensors that the client sends, and its training loss.

        ``plan`` holds the examples of each local step as indices into ``batch``. A defense that
        needs to know the client has to be fitted first.
        """
        model = self.task.model(sent, device=self.device)
        model.train(self.config.train_mode)
        self.chain.on_model(model)
        rng = generator(self.seed, "defense", round_, client)
        with torch.random.fork_rng():  # dropout draws from the global generator
            torch.manual_seed(derive(self.seed, "dropout", round_, client))
            if self.config.protocol == "fedsgd":
                tensors, loss = self._gradient(model, batch.to(self.device), rng)
                tensors = self.chain.on_update(tensors, rng) | self._buffers(model)
            else:
                loss = self._train(model, batch.to(self.device), plan, rng)
                tensors = self._defended_weights(model, sent, rng)
        return {name: value.detach().cpu() for name, value in tensors.items()}, loss

    def _gradient(
        self, model: nn.Module, batch: Batch, rng: torch.Generator
    ) -> tuple[Tensors, float]:
        """Mean gradient and loss; example by example where a defense asks for it."""
        batch = self.chain.on_batch(batch, rng)
        if not self.chain.per_example:
            return self._plain_gradient(model, batch)
        total: Tensors = {}
        losses = []
        for i in range(len(batch)):  # never more than two gradients of a large model at once
            gradient, loss = self._plain_gradient(model, batch[i])
            gradient = self.chain.on_gradient(gradient, rng)
            total = {k: total[k] + value for k, value in gradient.items()} if total else gradient
            losses.append(loss)
        total = self.chain.on_sum(total, rng)
        mean = {name: value / len(losses) for name, value in total.items()}
        return mean, sum(losses) / len(losses)

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
    ) -> float:
        parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
        optimizer = make_optimizer(self.config, list(parameters.values()))
        losses = []
        for step in plan:
            gradient, loss = self._gradient(model, batch[list(step)], rng)
            for name, parameter in parameters.items():
                parameter.grad = gradient[name]
            optimizer.step()
            losses.append(loss)
        return sum(losses) / len(losses)

    def _defended_weights(self, model: nn.Module, sent: Tensors, rng: torch.Generator) -> Tensors:
        trained = {k: p.detach() for k, p in model.named_parameters() if p.requires_grad}
        if self.chain.changes_update:  # otherwise the weights go out untouched, not re-rounded
            start = {name: sent[name].to(self.device) for name in trained}
            update = {name: start[name] - value for name, value in trained.items()}
            update = self.chain.on_update(update, rng)
            trained = {name: start[name] - update[name] for name in trained}
        return trained | self._buffers(model)

    def _buffers(self, model: nn.Module) -> Tensors:
        """Batch statistics, which only training mode changes."""
        if not self.config.train_mode:
            return {}
        parameters = {name for name, _ in model.named_parameters()}
        return {name: value for name, value in state(model).items() if name not in parameters}


def schedule(
    config: FederationConfig, seed: int, count: int, round_: int, client: int
) -> list[list[int]]:
    """Positions among a client's ``count`` rows of each local step; each epoch shuffles anew."""
    rng = generator(seed, "batches", round_, client)
    size = config.batch_size
    order = torch.randperm(count, generator=rng).tolist()
    if config.protocol == "fedsgd":
        return [order[:size]]
    order = order[: config.client_rows or count]
    epoch_steps = -(-len(order) // size)
    steps = []
    for step in range(config.local_steps or config.local_epochs * epoch_steps):
        start = step % epoch_steps
        if start == 0 and step > 0:
            shuffled = torch.randperm(len(order), generator=rng).tolist()
            order = [order[i] for i in shuffled]
        steps.append(order[start * size : (start + 1) * size])
    return steps


def make_optimizer(
    config: FederationConfig, parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """The client's optimiser of FedAvg."""
    lr, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=decay)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=decay)
    momentum = config.momentum if config.optimizer == "momentum" else 0.0
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay)
