"""Frozen first factors."""

import pytest
from torch import nn

from fedsim.defenses.ffa_lora import FfaLora
from fedsim.errors import ConfigError


def test_ffa_lora_freezes_the_first_factors() -> None:
    network = nn.ModuleDict({"q": nn.ModuleDict({"lora_A": nn.ModuleDict({"d": nn.Linear(2, 1)})})})
    network["head"] = nn.Linear(2, 2)
    FfaLora().on_model(network)
    trained = {name for name, value in network.named_parameters() if value.requires_grad}
    assert trained == {"head.weight", "head.bias"}
    with pytest.raises(ConfigError, match="has no adapter"):
        FfaLora().on_model(nn.Linear(2, 2))
