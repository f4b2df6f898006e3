"""Flower's ClientApp. It knows nothing of the engine that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from clients.train import LocalTrainer, LocalUpdate
from fedsim.capture import CaptureKey
from fedsim.cell import CellConfig
from fedsim.data.partition import partition
from fedsim.defenses import build_chain
from fedsim.files import read_record
from fedsim.knowledge import Fact, Knowledge
from fedsim.setting import load_setting
from fedsim.threads import one_thread
from fedsim.truth import TruthStore
from fedsim.types import Rows
from fedsim.wire import PARTITION, TrainReply, TrainRequest, partition_of

app = ClientApp()


@dataclass(frozen=True)
class Population:
    """What all clients of a cell share in one process."""

    config: CellConfig
    trainer: LocalTrainer
    private: Rows
    parts: list[list[int]]
    truth: TruthStore


@lru_cache(maxsize=1)
def load_population(cell: str) -> Population:
    """Read the cell folder once per process."""
    config = read_record(Path(cell) / "cell.json", CellConfig)
    setting = load_setting(config)
    private, federation = setting.holdings.private, config.federation
    parts = partition(private.labels, federation.clients, federation, config.seed)
    gpu = federation.client_gpus > 0 and torch.cuda.is_available()
    trainer = LocalTrainer(
        setting.task,
        federation,
        build_chain(config.defense, "defense"),
        config.seed,
        torch.device("cuda" if gpu else "cpu"),
    )
    return Population(config, trainer, private, parts, TruthStore(Path(cell) / "truth"))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the client's own rows, note the truth for the evaluator, and reply."""
    request = TrainRequest.read(message, context)
    population = load_population(str(context.run_config["cell"]))
    rows = population.private.take(population.parts[request.client])
    with one_thread():  # the same bits on every engine, whatever the number of workers
        update = population.trainer.run(request.sent, rows, request.round, request.client)
    key = CaptureKey(round=request.round, client=request.client)
    numbers = tuple(rows.numbers[position] for position in update.positions)
    population.truth.save(key, update.batch, numbers, update.steps)
    return TrainReply(
        request.client,
        len(update.batch),
        update.loss,
        update.kind,
        granted(population.config, update),
        update.tensors,
    ).write(message)


@app.query("whoami")
def whoami(message: Message, context: Context) -> Message:
    """Tell the client's number, so that a server can put clients in order."""
    metrics = MetricRecord({PARTITION: partition_of(context)})
    return Message(RecordDict({"whoami": metrics}), reply_to=message)


def granted(config: CellConfig, update: LocalUpdate) -> Knowledge:
    """The facts about this update that the threat model grants to the server.

    Labels and lengths are sorted, so that their order tells nothing.
    """
    batch, federation = update.batch, config.federation
    facts: dict[Fact, object] = {
        "num_examples": len(batch),
        "batch_size": federation.batch_size,
        "local_steps": len(update.steps),
        "learning_rate": federation.learning_rate,
        "optimizer": federation.optimizer,
        "train_mode": federation.train_mode,
        "defense": config.defense,
        "auxiliary": config.auxiliary is not None,
    }
    if batch.labels.dim() == 1:
        facts["labels"] = tuple(sorted(batch.labels.tolist()))
    if batch.mask is not None:
        facts["lengths"] = tuple(sorted(batch.mask.sum(1).tolist()))
    grants = config.server_knows.grants()
    return Knowledge.model_validate({k: v for k, v in facts.items() if k in grants})
