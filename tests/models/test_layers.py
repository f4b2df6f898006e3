"""Which built-in models train mode changes anything of."""

import pytest
from torch import nn

from experiments.wording.threat import threat_model
from fedsim.models.layers import has_dropout, has_train_mode
from tests.apps.cases import IMAGES, TEXT, Make


@pytest.mark.parametrize(
    ("parts", "dropout", "mode"),
    [
        ([nn.Linear(2, 2), nn.LayerNorm(2), nn.Dropout(0.0)], False, False),
        ([nn.Dropout(0.1)], True, True),
        ([nn.BatchNorm2d(3)], False, True),
        ([nn.BatchNorm1d(3)], False, True),
    ],
)
def test_layers_tell(parts: list[nn.Module], dropout: bool, mode: bool) -> None:
    network = nn.Sequential(*parts)
    assert (has_dropout(network), has_train_mode(network)) == (dropout, mode)


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("lenet", False),
        ("mlp", False),
        ("resnet20", True),
        ("tiny-bert", True),
        ("transformer3", False),
    ],
)
def test_the_threat_model_says_so(model: str, changes: bool, make_run: Make) -> None:
    base = IMAGES if model in {"lenet", "mlp", "resnet20"} else TEXT
    run = make_run(base, task={"model": model}, federation={"train_mode": True})
    mode = dict(threat_model([run.cells[0].config]).protocol)["client mode"]
    assert mode.startswith("train (dropout") == changes
