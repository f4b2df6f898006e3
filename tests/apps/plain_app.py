"""A Flower app of somebody who has never heard of fedsim's clients, for the tests of the server."""

import os
import sys
import time

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod

from fedsim.errors import Terminated

app = ClientApp()
clipped = ClientApp(mods=[adaptiveclipping_mod])


@clipped.train()
@app.train()
def train(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    round_ = int(str(message.content.config_records["config"]["server-round"]))
    misbehave(str(context.run_config.get("fault", "")), client, round_)
    rng = np.random.default_rng([client, round_])
    sent = next(iter(message.content.array_records.values()))
    trained = {}
    for name, array in sent.items():
        value = array.numpy()
        noise = rng.normal(size=value.shape).astype(value.dtype)
        trained[name] = Array(np.asarray(value - 0.1 * noise, dtype=value.dtype))
    metrics = MetricRecord({"num-examples": client + 1})
    content = RecordDict({"weights": ArrayRecord(trained), "metrics": metrics})
    return Message(content, reply_to=message)


def start_arrays() -> ArrayRecord:
    """Two tensors out of alphabetical order, and a scalar."""
    rng = np.random.default_rng(0)
    return ArrayRecord(
        {
            "z.weight": Array(rng.normal(size=(3, 4)).astype(np.float32)),
            "a.bias": Array(rng.normal(size=4).astype(np.float32)),
            "scalar": Array(np.asarray(rng.normal(), dtype=np.float32)),
        }
    )


def misbehave(fault: str, client: int, round_: int) -> None:
    """Client 1 of round 2 raises, exits, changes its process, dies, or hangs; once with a path."""
    if (client, round_) != (1, 2) or not fault:
        return
    kind, _, path = fault.partition(":")
    if path and os.path.exists(path):
        return
    if path:
        with open(path, "w"):
            pass
    if kind == "raise":
        raise ValueError("no such row: 17")
    if kind == "leave":
        sys.exit(0)
    if kind == "beyond":
        raise GeneratorExit("all")
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "terminated":
        raise Terminated(143)
    if kind == "change":
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
    if kind == "die":
        os._exit(3)
    if kind == "hang":
        time.sleep(60)
