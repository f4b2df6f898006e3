"""Foreign code of differential privacy with canaries in it, and ways in which it may be wrong."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from flwr.supercore.task_identity import TaskIdentity
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from experiments.bounds.claimed import products_of, trial_of_rows
from experiments.bounds.one_run import CanaryTrial
from fedsim.accountant import noise_multiplier
from fedsim.canaries import CanaryRows, Planting
from fedsim.types import Tensors

CLIP, DELTA, EPSILON = 0.5, 1e-5, 8.0
NOISE = float(np.sqrt(2 * np.log(1.25 / DELTA)) / EPSILON)
"""Of Flower's ``LocalDpMod`` in clipping norms; the exact epsilon is 7.91."""
CLIENTS, STEPS, RATE, ROWS, CANARIES = 100, 4, 0.5, 200, 1500
FAULTS = ("none", "no noise", "half the noise", "no clipping")
ALL_ROWS = "all rows in every step"
"""As with a loader of length 1, of whose rows the claim says that a half is drawn."""
Fault = str


def _scale(fault: Fault) -> tuple[float, float]:
    """Factors of the noise, and of the norm to which updates are clipped."""
    noise = {"no noise": 0.0, "half the noise": 0.5}.get(fault, 1.0)
    return noise, 100.0 if fault == "no clipping" else 1.0


def _replies(folder: Path, mods: list[Callable[..., Message]]) -> tuple[Tensors, list[Message]]:
    """What a hundred clients reply through mods, the canaries behind all others."""
    from clients.canary_mod import canary_mod

    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)
    sent = {"a": torch.linspace(-1, 1, 300).reshape(30, 10), "b": torch.ones(40)}
    replies = []
    for node in range(CLIENTS):
        config = ConfigRecord({"clipping_norm": CLIP, "server-round": 1})
        content = RecordDict({"arrays": ArrayRecord(sent), "config": config})
        message = Message(content, dst_node_id=node + 1, message_type="train")

        def app(own: Message, _: Context) -> Message:
            metrics = MetricRecord({"num-examples": 1})
            reply = RecordDict({"arrays": ArrayRecord(sent), "metrics": metrics})
            return Message(reply, reply_to=own)

        for mod in reversed([*mods, canary_mod(folder, CLIP, CLIENTS)]):
            app = _behind(mod, app)
        replies.append(app(message, Context(1, node, {}, RecordDict(), {})))
    return sent, replies


def _behind(mod: Callable[..., Message], app: Any) -> Any:
    return lambda message, context: mod(message, context, app)


def _weights(record: ArrayRecord) -> Tensors:
    return dict(record.to_torch_state_dict())


def local_dp_mod(folder: Path, fault: Fault) -> CanaryTrial:
    """Flower's ``LocalDpMod``."""
    noise, clip = _scale(fault)
    mod = LocalDpMod(clip * CLIP, max(noise, 1e-9) * CLIP, EPSILON, DELTA)
    sent, replies = _replies(folder, [mod])
    planting = Planting.open(folder)
    scores, places = [], [planting.numbers()[str(node)] for node in range(CLIENTS)]
    for reply, place in zip(replies, places, strict=True):
        (record,) = reply.content.array_records.values()
        moved = {k: v.double() - sent[k].double() for k, v in _weights(record).items()}
        scores.append([float(products_of(planting, moved)[place])])
    return _trial(planting, scores, places)


def _central(kind: Any, mods: list[Any]) -> Callable[[Path, Fault], CanaryTrial]:
    def trial(folder: Path, fault: Fault) -> CanaryTrial:
        noise, clip = _scale(fault)
        options: dict[str, Any] = {"noise_multiplier": noise * NOISE / clip}
        norm = "initial_clipping_norm" if "Adaptive" in kind.__name__ else "clipping_norm"
        strategy = kind(FedAvg(), num_sampled_clients=CLIENTS, **{norm: clip * CLIP}, **options)
        own = [] if fault == "no clipping" else mods
        sent, replies = _replies(folder, own)
        strategy.current_arrays = ArrayRecord(sent)
        mean, _ = strategy.aggregate_train(1, replies)
        planting = Planting.open(folder)
        places = [planting.numbers()[str(node)] for node in range(CLIENTS)]
        moved = {k: v.double() - sent[k].double() for k, v in _weights(mean).items()}
        products = CLIENTS * products_of(planting, moved)
        return _trial(planting, [[float(products[place])] for place in places], places)

    return trial


def _trial(planting: Planting, scores: list[list[float]], places: list[int]) -> CanaryTrial:
    coins = np.array(planting.plan.coins)[places]
    return CanaryTrial(np.array(scores), coins, np.zeros(len(places)))


def opacus_loop(folder: Path, fault: Fault) -> CanaryTrial:
    """Four steps of Opacus' engine, each of half the rows."""
    from opacus import PrivacyEngine

    noise, clip = _scale(fault)
    rate = 1.0 if fault == ALL_ROWS else RATE
    rows = TensorDataset(torch.rand(ROWS, 80), torch.zeros(ROWS, dtype=torch.int64))
    planted = CanaryRows(rows, folder, clip=CLIP, count=CANARIES)
    model = nn.Linear(80, 40, bias=False)
    loader = DataLoader(planted, batch_size=math.ceil(rate * len(planted)))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=noise * opacus_noise() / clip,
        max_grad_norm=clip * CLIP,
        poisson_sampling=rate < 1,
    )
    planted.watch(optimizer)
    done = 0
    while done < STEPS:
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            done += 1
            if done == STEPS:
                break
    return trial_of_rows(folder)


def opacus_noise() -> float:
    """Noise multiplier with which the loop spends ``EPSILON``."""
    return noise_multiplier(steps=STEPS, rate=RATE, target=EPSILON, delta=DELTA)


IMPLEMENTATIONS: dict[str, Callable[[Path, Fault], CanaryTrial]] = {
    "LocalDpMod": local_dp_mod,
    "ServerSideFixedClipping": _central(DifferentialPrivacyServerSideFixedClipping, []),
    "ClientSideFixedClipping": _central(
        DifferentialPrivacyClientSideFixedClipping, [fixedclipping_mod]
    ),
    "ServerSideAdaptiveClipping": _central(DifferentialPrivacyServerSideAdaptiveClipping, []),
    "Opacus": opacus_loop,
}
