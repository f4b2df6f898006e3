"""Memory that nothing has written reaches no weight and no result."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from attacks.images.generator import GENERATORS, build_generator
from experiments.checks.capture_check import examine
from experiments.pipeline import execute
from fedsim.config.setting import load_setting
from fedsim.models import IMAGE_MODELS, TEXT_MODELS, transformer
from fedsim.process import poisoned
from fedsim.tasks.text import TextTask
from fedsim.tasks.weights import initial_weights
from tests.apps.cases import IMAGES, TEXT, Make, left_by, merge, simulate


def unwritten(network: nn.Module) -> list[str]:
    tensors = [*network.named_parameters(), *network.named_buffers()]
    return [name for name, value in tensors if value.isnan().any()]


def test_fresh_memory_is_poisoned_for_a_moment() -> None:
    flags = torch.are_deterministic_algorithms_enabled()
    with poisoned():
        assert torch.empty(1000).isnan().all()
        assert unwritten(nn.Linear(2, 2)) == []
    assert torch.are_deterministic_algorithms_enabled() is flags


@pytest.mark.some(3)
@pytest.mark.parametrize("model", [*TEXT_MODELS, *IMAGE_MODELS])
def test_a_model_is_written_when_it_is_built(model: str, make_run: Make) -> None:
    base = TEXT if model in TEXT_MODELS else IMAGES
    config = make_run(base, task={"model": model}).cells[0].config
    task = load_setting(config).task
    with poisoned():
        weights = initial_weights(task, config.task, 0)
        assert unwritten(task.build()) == []
        assert unwritten(task.model(weights)) == []
    assert not any(value.isnan().any() for value in weights.values())


def test_a_blank_network_has_its_buffers_and_no_weight_that_is_drawn() -> None:
    architecture = transformer.architecture(str(TEXT_MODELS["tiny-gpt2"]), 0)
    with poisoned():
        blank: Any = transformer.blank(architecture, "language-modelling")
    drawn = {name for name, value in blank.named_parameters() if value.dim() > 1}
    assert {*unwritten(blank)} == drawn
    assert blank.lm_head.weight is blank.transformer.wte.weight


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_is_written_when_it_has_learned(name: str) -> None:
    with poisoned():
        generator = build_generator(name, (1, 8, 8), 4)
        generator.fit(torch.rand(6, 1, 8, 8), seed=0, steps=2)
    assert unwritten(generator) == []


LEARNED: dict[str, Any] = {
    "attacks": [
        {"name": "lti", "epochs": 2, "width": 8},
        {"name": "ridge"},
        {"name": "statistics"},
        {"name": "gi_gip", "generator_steps": 3, "latent_steps": 2, "weight_steps": 2},
        {"name": "prior_only"},
    ],
}


@pytest.mark.some(2)
@pytest.mark.parametrize("base", [TEXT, merge(IMAGES, LEARNED)], ids=["text", "images"])
def test_a_run_in_poisoned_memory_leaves_the_same(base: dict[str, Any], make_run: Make) -> None:
    def run(folder: str) -> dict[str, Any]:
        made = make_run(base, folder, federation={"rounds": 1})
        execute(made, ("simulate", "attack"), quiet=True)
        return left_by(made)

    clean = run("clean")
    with poisoned():
        assert run("poisoned") == clean


@pytest.mark.slow
def test_the_doctor_names_a_weight_that_nothing_writes(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(TEXT)
    simulate(run)
    build: Callable[[TextTask], nn.Module] = TextTask.build

    def lazy(task: TextTask) -> nn.Module:
        network = build(task)
        weight = network.get_parameter("classifier.weight")
        weight.data = torch.empty_like(weight)
        return network

    assert "never writes" not in examine(run).text()
    monkeypatch.setattr(TextTask, "build", lazy)
    assert "tensors that the network never writes: classifier.weight. They" in examine(run).text()
