"""The protocol of a federation: who trains, how, and what of it the server sees."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fedsim.section import ConfigSection


class FederationConfig(ConfigSection):
    """``[federation]``: the protocol.

    Attributes:
        engine: where clients and attacks run.
        clients: how many there are; each owns one part of the private rows.
        participation: share of the clients drawn in each round, at least one.
        local_epochs: FedAvg: passes over the client's rows (at most ``client_rows``).
        local_steps: FedAvg: steps instead of epochs, where it is not 0.
        client_rows: FedAvg: how many of its rows a client uses in a round; 0 for all.
        partition: how the private rows are dealt out.
        alpha: concentration of the Dirichlet partition.
        classes_per_client: for the by-label partition.
        size_spread: how unlike the clients' numbers of rows are: the standard deviation of their
            logarithm, which is normal, before a partition by classes adds its own; 0 for equal.
        train_mode: dropout and batch statistics on at the client.
        batch_statistics: whether a client in train mode sends its running batch statistics, or
            keeps them, as in FedBN (Li et al. 2021); the global model then keeps its first ones.
        server_learning_rate: step of FedSGD on the mean gradient, or on the mean FedAvg update.
        strategy: the Flower strategy that aggregates FedAvg replies.
        secure_aggregation: clients whose updates are summed before the server sees them, in
            cohorts drawn anew each round; 0 or 1 for none. It has to divide the number of clients
            drawn in a round, so that no smaller cohort is left over.
        client_workers: client processes of the Ray engine.
        client_timeout: seconds until a client counts as hung.
        client_gpus: GPU share of a client worker.
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
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = "sgd"
    learning_rate: float = Field(default=0.1, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    train_mode: bool = False
    batch_statistics: Literal["sent", "kept"] = "sent"
    partition: Literal["iid", "dirichlet", "by-label"] = "iid"
    alpha: float = Field(default=0.5, gt=0)
    classes_per_client: int = Field(default=2, ge=1)
    size_spread: float = Field(default=0.0, ge=0, le=5)
    server_learning_rate: float = Field(default=1.0, gt=0)
    strategy: Literal["fedavg", "fedadam", "fedmedian"] = "fedavg"
    secure_aggregation: int = Field(default=0, ge=0)
    client_workers: int = Field(default=2, ge=1)
    client_timeout: float = Field(default=600.0, gt=0)
    client_gpus: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> FederationConfig:
        if self.protocol == "fedsgd" and self.strategy != "fedavg":
            raise ValueError(
                f"strategy {self.strategy!r} aggregates weights, and fedsgd sends gradients; "
                "set protocol = 'fedavg' or leave strategy out"
            )
        if self.cohort > 1 and self.strategy == "fedmedian":
            raise ValueError(
                "strategy 'fedmedian' needs the single updates, and secure_aggregation = "
                f"{self.cohort} hides them; choose 'fedavg' or 'fedadam', or set 0"
            )
        if self.drawn % self.cohort:
            raise ValueError(
                f"secure_aggregation = {self.cohort} does not divide the {self.drawn} clients of a "
                "round, and would leave a smaller cohort over; "
                f"write a divisor of {self.drawn}, or change clients or participation"
            )
        return self

    @property
    def drawn(self) -> int:
        """How many clients take part in a round."""
        return max(1, round(self.participation * self.clients))

    @property
    def cohort(self) -> int:
        """How many clients one reply that the server sees stands for."""
        return max(1, self.secure_aggregation)

    @property
    def replies(self) -> int:
        """How many replies the server sees in a round, those of probes not counted."""
        return self.drawn // self.cohort
