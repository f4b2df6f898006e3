"""Batches and optimiser of a client's local steps."""

import warnings
from collections.abc import Iterable
from statistics import fmean

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LRScheduler

from fedsim.config.federation import FederationConfig
from fedsim.process import PROCESS
from fedsim.seeds import generator
from fedsim.types import Tensors


def schedule(
    config: FederationConfig, seed: int, count: int, round_: int, client: int
) -> list[list[int]]:
    """Positions among a client's ``count`` rows that each local step uses.

    FedSGD takes one random batch. FedAvg takes ``client_rows`` random rows in batches and shuffles
    them again for every further epoch; the last batch of an epoch may be smaller.
    """
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


class Descent:
    """The local steps of a FedAvg client on given parameters, in place.

    Args:
        config: optimiser, schedule, clipping and proximal term.
        parameters: trainable parameters by name, with the values that the server sent.
        steps: number of local steps in the round.
        round_: number of the round, from 1.
    """

    def __init__(
        self, config: FederationConfig, parameters: dict[str, nn.Parameter], steps: int, round_: int
    ) -> None:
        self._config, self._parameters = config, parameters
        self._sent: Tensors = {}
        if config.proximal_mu:
            self._sent = {name: p.detach().clone() for name, p in parameters.items()}
        self._optimizer = _optimizer(
            config.optimizer,
            parameters.values(),
            config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
        self._over_rounds = config.schedule_over == "rounds"
        self._rates = _rates(config, self._optimizer, config.rounds if self._over_rounds else steps)
        for _ in range(round_ - 1 if self._over_rounds and self._rates else 0):
            self._advance()
        self._used: list[float] = []

    @property
    def learning_rate(self) -> float:
        """Mean learning rate of the steps so far."""
        return fmean(self._used)

    def step(self, gradient: Tensors) -> None:
        """Take one step along the mean gradient of a batch."""
        for name, parameter in self._parameters.items():
            parameter.grad = gradient[name]
            if self._sent:
                pull = parameter.detach() - self._sent[name]
                parameter.grad = gradient[name] + self._config.proximal_mu * pull
        if self._config.max_grad_norm:
            clip_grad_norm_(list(self._parameters.values()), self._config.max_grad_norm)
        self._used.append(float(self._optimizer.param_groups[0]["lr"]))
        self._optimizer.step()
        if self._rates and not self._over_rounds:
            self._rates.step()

    def _advance(self) -> None:
        assert self._rates is not None
        with PROCESS, warnings.catch_warnings(action="ignore"):  # torch wants a step before each
            self._rates.step()


def nominal_rate(config: FederationConfig, mean: float, steps: int) -> float:
    """The learning rate before its schedule over ``steps`` steps, given the mean of the steps'."""
    parameters = {"any": nn.Parameter(torch.zeros(1))}
    unit = Descent(config.model_copy(update={"learning_rate": 1.0}), parameters, steps, 1)
    for _ in range(steps):
        unit.step({"any": torch.zeros(1)})
    return mean / unit.learning_rate


def _rates(
    config: FederationConfig, optimizer: torch.optim.Optimizer, length: int
) -> LRScheduler | None:
    """The schedule of the learning rate over ``length`` steps or rounds; None if it is constant."""
    if config.schedule == "constant" and not config.warmup_steps:
        return None
    from transformers import get_scheduler  # takes seconds to import

    name = "constant_with_warmup" if config.schedule == "constant" else config.schedule
    schedule: LRScheduler = get_scheduler(name, optimizer, config.warmup_steps, length)
    return schedule


def _optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    *,
    momentum: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """The optimiser of a name of ``[federation]``, with torch's defaults for all else."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=learning_rate, weight_decay=weight_decay)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=weight_decay)
    if name == "adafactor":
        return torch.optim.Adafactor(parameters, lr=learning_rate, weight_decay=weight_decay)
    inertia = momentum if name == "momentum" else 0.0
    return torch.optim.SGD(
        parameters, lr=learning_rate, momentum=inertia, weight_decay=weight_decay
    )
