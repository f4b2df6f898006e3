"""Captures of an application that knows nothing of fedsim."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch.utils.data import DataLoader

import fedsim
from server.grids.in_process import InProcessGrid
from server.grids.local import run_server
from tests.experiments.captures.conftest import SENTENCE, Held

OTHER = "We meet at noon."


Arrays = Callable[[Any], ArrayRecord]


def by_name(model: Any) -> ArrayRecord:
    return ArrayRecord({name: value.clone() for name, value in model.state_dict().items()})


def numbered(model: Any) -> ArrayRecord:
    return ArrayRecord([value.numpy() for value in model.state_dict().values()])


def adapters(model: Any) -> ArrayRecord:
    """As peft's ``get_peft_model_state_dict`` names them."""
    found = {name: value for name, value in model.state_dict().items() if "lora_" in name}
    return ArrayRecord(
        {f"base_model.model.{n.replace('.default', '')}": v.clone() for n, v in found.items()}
    )


def federate(held: Held, trained: Any, arrays: Arrays, root: Path, **described: Any) -> None:
    """One round of an app with two clients; the second one's count is of batches, not examples."""
    client = ClientApp(mods=[fedsim.truth_mod(root / "private")])

    @client.train()
    def train(message: Message, context: Context) -> Message:
        start = {name: value.clone() for name, value in trained.state_dict().items()}
        text = (SENTENCE, OTHER)[int(str(context.node_config["partition-id"]))]
        ids = [*held.tokenizer(text)["input_ids"], held.tokenizer.eos_token_id]
        rows = [{"input_ids": torch.tensor(ids)}]
        optimizer = torch.optim.SGD([p for p in trained.parameters() if p.requires_grad], lr=0.1)
        for batch in DataLoader(rows, batch_size=1):  # type: ignore[arg-type]
            optimizer.zero_grad()
            trained(batch["input_ids"], labels=batch["input_ids"]).loss.backward()
            optimizer.step()
        numbers = MetricRecord({"num-examples": 7})
        content = RecordDict({"trained": arrays(trained), "numbers": numbers})
        trained.load_state_dict(start)
        return Message(content, reply_to=message)

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        plain = FedAvg(fraction_evaluate=0.0, min_available_nodes=2)
        strategy = fedsim.Eavesdropper(plain, root / "captures", **described)
        strategy.start(grid, arrays(trained), num_rounds=1)

    run_server(app, InProcessGrid(client, 2, {}), {})


def broken(*_: object) -> None:
    raise IndexError("out of range")
