"""What an inverter simulates of text models under each defense, without gradients of its own."""

import pytest
import torch

from attacks.observed.replay import observed_gradient
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.tasks import initial_weights, make_task
from tests.attacks.learned.cases import client, described, rng


@pytest.mark.parametrize(
    ("table", "cosine"),
    [
        ({"name": "prune", "fraction": 0.9}, 0.999),
        ({"name": "sign"}, 0.99),  # that of what is nearly 0 may differ
        ({"name": "quantize", "kind": "qsgd"}, 0.9),  # by chance
        ({"name": "clip", "norm": 0.1}, 0.999),
        ({"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1e-6}, 0.9),
    ],
    ids=["prune", "sign", "qsgd", "clip", "dp_sgd"],
)
def test_updates_of_an_encoder_are_simulated(table: dict[str, object], cosine: float) -> None:
    rows = load_rows("sentences", "train[:2]", modality="text")
    config = TaskConfig(model="tiny-bert", dataset="sentences", max_length=6)
    task = make_task(config, rows)
    batch = task.encode(rows)
    seen = client(task, initial_weights(task, config, 0), batch, table)
    simulated = described(task, seen, 2)
    with torch.no_grad():  # as where features are made
        features = simulated.linear(batch, rng())[0]
    sent = simulated.coordinates.flatten(observed_gradient(seen)).float()
    assert torch.cosine_similarity(features, sent, dim=0) > cosine
