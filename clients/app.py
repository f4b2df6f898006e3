"""Flower ClientApp, independent of the engine that runs it."""

import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from clients.granted_facts import granted
from clients.probes import Probe, make_probes
from clients.train import LocalTrainer
from clients.updates import LocalUpdate
from fedsim.config.cell import CellConfig
from fedsim.config.setting import load_setting
from fedsim.data.partition import partition
from fedsim.defenses import build_chain
from fedsim.errors import ConfigError
from fedsim.participation import cohort_of
from fedsim.process import device_for, float32, one_thread
from fedsim.records import ProbeKind
from fedsim.store.capture import CaptureKey
from fedsim.store.files import read_record
from fedsim.store.truth import TruthStore
from fedsim.types import Rows
from fedsim.wire import PARTITION, TrainReply, TrainRequest, partition_of

app = ClientApp()


@dataclass(frozen=True)
class Population:
    """State that all clients of a cell share in one process.

    Attributes:
        config: configuration of the cell.
        trainer: local training with the cell's defenses.
        private: the private rows of all clients.
        parts: positions of each client's rows among the private ones.
        probes: the probes; their numbers follow those of the clients.
        truth: where the examples behind captured updates are stored.
    """

    config: CellConfig
    trainer: LocalTrainer
    private: Rows
    parts: list[list[int]]
    probes: tuple[Probe, ...]
    truth: TruthStore

    def work(self, request: TrainRequest) -> LocalUpdate:
        """Train as the client or probe asked for, and store the truth of what will be captured."""
        round_, client = request.round, request.client
        probe = self.probe(client)
        key = CaptureKey(round=round_, client=client)
        memory = self.truth.memory(key) if self.trainer.chain.has_memory else {}
        exact = float32(tf32=self.config.federation.tf32)
        with exact, one_thread():  # identical results on every engine, for any number of workers
            if probe is None:
                rows = self.private.take(self.parts[client])
                update = self.trainer.run(request.sent, rows, round_, client, memory)
            else:
                rows = probe.rows
                update = probe.run(self.trainer, request.sent, round_, client, memory)
        self.truth.remember(key, update.memory)
        config = self.config
        cohort = cohort_of(config.federation, config.seed, round_, client)
        if not config.captured.keeps(round_, client if cohort is None else cohort):
            return update
        numbers = tuple(rows.numbers[position] for position in update.positions)
        kind: ProbeKind = "none" if probe is None else probe.kind
        host = None if probe is None else probe.host
        self.truth.save(key, update.batch, numbers, update.steps, kind, host, cohort)
        return update

    def probe(self, client: int) -> Probe | None:
        """The probe with this number; None for a client."""
        return None if client < len(self.parts) else self.probes[client - len(self.parts)]


@lru_cache(maxsize=1)
def load_population(cell: str) -> Population:
    """Read the cell folder, once per process."""
    config = read_record(Path(cell) / "cell.json", CellConfig)
    setting = load_setting(config)
    private, federation = setting.holdings.private, config.federation
    parts = partition(private.labels, federation.clients, federation, config.seed)
    device = device_for(federation.client_gpus)
    if federation.client_gpus and device.type == "cpu":
        raise ConfigError(
            f"federation.client_gpus: {federation.client_gpus:g} was asked for, and torch finds no "
            f"GPU on {socket.gethostname()}. Set 0 to train on the CPU."
        )
    chain = build_chain(config.defense, "defense")
    network = setting.task.build().to(device)
    trainer = LocalTrainer(setting.task, federation, chain, config.seed, device, network=network)
    probes = make_probes(config, setting.holdings, parts)
    return Population(config, trainer, private, parts, probes, TruthStore(Path(cell) / "truth"))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the client's own rows, and reply with what the threat model permits."""
    request = TrainRequest.read(message, context)
    population = load_population(str(context.run_config["cell"]))
    update = population.work(request)
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
    """Report the client's number, by which a server can sort clients."""
    metrics = MetricRecord({PARTITION: partition_of(context)})
    return Message(RecordDict({"whoami": metrics}), reply_to=message)
