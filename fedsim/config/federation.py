"""Configuration of the federation: the protocol, local training and aggregation."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from fedsim.config.section import ConfigSection

_NOT_TRAINING = frozenset(
    {
        # granted as facts of their own
        *("protocol", "batch_size", "local_steps", "local_epochs", "optimizer", "learning_rate"),
        *("train_mode", "batch_statistics"),
        # which rows a client has and uses
        *("clients", "rounds", "participation", "client_rows"),
        *("partition", "alpha", "classes_per_client", "size_spread"),
        # what the server makes of the replies
        *("server_learning_rate", "strategy", "server_momentum", "malicious_nodes"),
        *("secure_aggregation", "cohorts"),
        # where it all runs
        *("engine", "client_workers", "client_timeout", "client_gpus", "tf32"),
    }
)
"""Options that are none of ``FederationConfig.training``; every other one is."""
_STEPPING = ("max_grad_norm", "schedule", "warmup_steps", "proximal_mu")


class FederationConfig(ConfigSection):
    """``[federation]``: the protocol, local training and aggregation.

    Attributes:
        engine: where clients and attacks run: in Ray processes, or one by one in this process.
        protocol: ``fedsgd`` sends the gradient of one batch, ``fedavg`` the locally trained weights
            (McMahan et al. 2017).
        clients: number of clients; each owns a part of the private rows.
        rounds: number of rounds.
        participation: share of the clients drawn in each round, rounded, at least one client.
        batch_size: examples in a local step.
        accumulation: number of micro-batches that a step's examples are divided into; their mean
            losses have equal weights, so an example of a smaller one has more.
        precision: dtype of matrix products (automatic mixed precision): weights, loss and updates
            stay in float32. The loss is scaled for ``fp16``, by the largest power of 2 that keeps
            gradients finite.
        label_smoothing: share of each target's probability that is spread over all classes, or over
            the vocabulary.
        local_epochs: FedAvg: passes over the client's rows (over ``client_rows`` of them, if set).
        local_steps: FedAvg: number of steps, which replaces the epochs unless it is 0.
        client_rows: FedAvg: number of its rows that a client uses in a round; 0 for all.
        optimizer: FedAvg: the client's optimiser.
        learning_rate: step size of the client, and of the server under FedSGD.
        momentum: FedAvg: of the optimiser ``momentum``.
        weight_decay: FedAvg: L2 penalty of the optimiser; decoupled from the gradient for
            ``adamw`` and ``adafactor``.
        max_grad_norm: FedAvg: norm to which each step's gradient is cut; 0 leaves it.
        schedule: FedAvg: course of the learning rate after the warm-up, as ``transformers`` has it:
            ``linear`` and ``cosine`` fall to 0.
        schedule_over: whether the schedule spans the local steps of each round, as with a trainer
            made anew in each, or the rounds, in each of which it is constant.
        warmup_steps: FedAvg: local steps, or rounds, in which the learning rate rises from 0.
        proximal_mu: FedAvg: weight of FedProx's term, ``mu / 2 |w - sent|^2`` (Li et al. 2020).
        train_mode: train clients with dropout and batch statistics active.
        batch_statistics: whether a client in train mode sends its running batch statistics, or
            keeps them as in FedBN (Li et al. 2021); the global model then keeps its initial ones.
        partition: how the private rows are divided among the clients.
        alpha: concentration of the Dirichlet partition; the smaller, the more the clients' classes
            differ.
        classes_per_client: number of classes of each client in the by-label partition.
        size_spread: standard deviation of the logarithm of the clients' sizes, which is normally
            distributed; 0 for equal sizes. A partition by class adds its own variation.
        server_learning_rate: factor on the server's step: on the mean gradient times
            ``learning_rate`` under FedSGD, on the mean update under FedAvg.
        strategy: the Flower strategy that aggregates FedAvg replies.
        server_momentum: of the strategy ``fedavgm``.
        malicious_nodes: number of clients that the strategy ``krum`` guards against.
        secure_aggregation: number of clients in a cohort, whose updates are summed before the
            server sees them; 0 or 1 disables it. It has to divide the number of clients drawn in a
            round, so that no smaller cohort is left over.
        cohorts: whether cohorts are drawn anew in each round, or stay those of the first, as So et
            al. 2021 (2106.03328) have it, for which all clients have to take part in every round.
        client_workers: number of client processes of the Ray engine.
        client_timeout: seconds after which a client counts as hung.
        client_gpus: share of a GPU that each client process gets. Whether it is 0 is part of what
            identifies a cell, since sums differ between the devices.
        tf32: multiply and convolve in TF32 on a GPU: faster, and too inexact for exact attacks.
    """

    engine: Literal["ray", "in-process"] = "ray"
    protocol: Literal["fedsgd", "fedavg"] = "fedsgd"
    clients: int = Field(default=4, ge=1, le=10_000)
    rounds: int = Field(default=1, ge=1)
    participation: float = Field(default=1.0, gt=0, le=1)
    batch_size: int = Field(default=1, ge=1)
    local_epochs: int = Field(default=1, ge=1)
    local_steps: int = Field(default=0, ge=0)
    client_rows: int = Field(default=0, ge=0)
    accumulation: int = Field(default=1, ge=1)
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    optimizer: Literal["sgd", "momentum", "adam", "adamw", "adafactor"] = "sgd"
    learning_rate: float = Field(default=0.1, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=0.0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    schedule_over: Literal["steps", "rounds"] = "steps"
    warmup_steps: int = Field(default=0, ge=0)
    proximal_mu: float = Field(default=0.0, ge=0)
    train_mode: bool = False
    batch_statistics: Literal["sent", "kept"] = "sent"
    partition: Literal["iid", "dirichlet", "by-label"] = "iid"
    alpha: float = Field(default=0.5, gt=0)
    classes_per_client: int = Field(default=2, ge=1)
    size_spread: float = Field(default=0.0, ge=0, le=5)
    server_learning_rate: float = Field(default=1.0, gt=0)
    strategy: Literal[
        "fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedprox", "fedmedian", "krum"
    ] = "fedavg"
    server_momentum: float = Field(default=0.9, ge=0, lt=1)
    malicious_nodes: int = Field(default=0, ge=0)
    secure_aggregation: int = Field(default=0, ge=0)
    cohorts: Literal["redrawn", "fixed"] = "redrawn"
    client_workers: int = Field(default=2, ge=1)
    client_timeout: float = Field(default=600.0, gt=0)
    client_gpus: float = Field(default=0.0, ge=0)
    tf32: bool = False

    @model_validator(mode="after")
    def _check(self) -> FederationConfig:
        if self.protocol == "fedsgd" and self.strategy != "fedavg":
            raise ValueError(
                f"strategy {self.strategy!r} aggregates weights, but fedsgd sends gradients; "
                "set protocol = 'fedavg' or leave strategy out"
            )
        if self.protocol == "fedsgd":
            self._check_fedsgd()
        if self.cohort > 1 and not self.averages:
            raise ValueError(
                f"strategy {self.strategy!r} needs individual updates, but secure_aggregation = "
                f"{self.cohort} hides them; choose 'fedavg' or 'fedadam', or set 0"
            )
        if self.strategy == "fedprox" and not self.proximal_mu:
            raise ValueError(
                "strategy 'fedprox' with proximal_mu = 0 is FedAvg; set proximal_mu, for example "
                "to 0.1, or choose 'fedavg'"
            )
        if self.strategy == "krum" and self.drawn < self.malicious_nodes + 3:
            raise ValueError(
                f"strategy 'krum' compares a client with the {self.drawn} - malicious_nodes - 2 "
                f"nearest others, but malicious_nodes is {self.malicious_nodes}; "
                "draw more clients, or lower it"
            )
        if self.schedule_over == "steps" and 0 < self.local_steps <= self.warmup_steps:
            raise ValueError(
                f"warmup_steps = {self.warmup_steps} leaves none of the {self.local_steps} "
                "local_steps; lower it, or set schedule_over = 'rounds'"
            )
        if self.cohorts == "fixed" and (self.cohort == 1 or self.drawn < self.clients):
            raise ValueError(
                "cohorts = 'fixed' needs secure_aggregation, and all clients in every round; "
                "set secure_aggregation and participation = 1, or leave it out"
            )
        if self.drawn % self.cohort:
            raise ValueError(
                f"secure_aggregation = {self.cohort} does not divide the {self.drawn} clients of a "
                "round, so a smaller cohort would be left over; "
                f"write a divisor of {self.drawn}, or change clients or participation"
            )
        return self

    def _check_fedsgd(self) -> None:
        for name in _STEPPING:
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} = {value!r} changes local steps, but fedsgd sends a gradient without "
                    "any; set protocol = 'fedavg', or leave it out"
                )

    @property
    def averages(self) -> bool:
        """Whether the strategy uses no more than the weighted mean of the replies."""
        return self.strategy not in {"fedmedian", "krum"}

    @property
    def plain(self) -> bool:
        """Whether the first step of the client's optimiser is a multiple of its gradient."""
        return self.optimizer in {"sgd", "momentum"}

    @property
    def training(self) -> dict[str, Any]:
        """The options of local training that have no other place in what the server is told.

        A new option is one of them unless it is listed as another, so that whoever replays a client
        learns of it.
        """
        options = type(self).model_fields
        return {name: getattr(self, name) for name in options if name not in _NOT_TRAINING}

    @property
    def drawn(self) -> int:
        """Number of clients that take part in a round."""
        return max(1, round(self.participation * self.clients))

    @property
    def cohort(self) -> int:
        """Number of clients behind each reply that the server sees."""
        return max(1, self.secure_aggregation)

    @property
    def replies(self) -> int:
        """Number of replies that the server sees in a round, probes not counted."""
        return self.drawn // self.cohort
