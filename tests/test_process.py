"""Threads of one process that build networks and draw at once, each as if it were alone."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from experiments.pipeline import execute
from fedsim.errors import ConfigError
from fedsim.models import TEXT_MODELS, image_network, transformer
from fedsim.process import one_thread
from fedsim.seeds import seeded
from tests.apps.cases import TEXT, Make, simulate

ARCHITECTURE = transformer.architecture(str(TEXT_MODELS["tiny-gpt2"]), 0)


pytestmark = pytest.mark.usefixtures("eager_threads")


def beside(work: Callable[[], object], times: int) -> list[Any]:
    """What two threads get that do the same work many times."""
    start = threading.Barrier(2)

    def repeat(_: int) -> list[object]:
        start.wait()
        return [work() for _ in range(times)]

    with ThreadPoolExecutor(2) as threads:
        return [value for values in threads.map(repeat, range(2)) for value in values]


def drawn() -> tuple[float, ...]:
    with seeded(7):
        numbers = [float(torch.rand(1)), float(np.random.rand()), random.random()]
        return *numbers, *nn.Linear(2, 1).weight.flatten().tolist()


def test_two_threads_draw_the_same_under_one_seed() -> None:
    assert set(beside(drawn, 300)) == {drawn()}


def test_two_threads_build_the_same_network_and_leave_the_initialisers_alone() -> None:
    before = dict(vars(nn.init))

    def built() -> float:
        transformer.blank(ARCHITECTURE, "language-modelling")
        network = transformer.build(ARCHITECTURE, "language-modelling", 3)
        return float(
            torch.cat([value.detach().flatten() for value in network.parameters()]).double().sum()
        )

    assert len(set(beside(built, 10))) == 1
    assert dict(vars(nn.init)) == before


def test_a_network_that_another_thread_builds_waits_for_the_draws_of_this_one() -> None:
    """Layers draw from the global generator, whether or not their weights are replaced later."""
    other = threading.Thread(target=image_network, args=("lenet", (3, 16, 16), 4, {}))
    with seeded(7):
        expected = torch.rand(8)
    with seeded(7):
        other.start()
        other.join(0.5)
        drawn_beside = torch.rand(8)
    other.join()
    assert torch.equal(drawn_beside, expected)


def test_a_network_is_blank_in_one_thread_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    layers: list[nn.Linear] = []
    loader = transformer._loader("language-modelling")

    class Observed:
        @staticmethod
        def from_config(*args: object, **kwargs: object) -> Any:
            other = threading.Thread(target=lambda: layers.append(nn.Linear(100, 100)))
            other.start()
            other.join()
            return loader.from_config(*args, **kwargs)

    monkeypatch.setattr(transformer, "_loader", lambda _: Observed)
    torch.manual_seed(0)
    transformer.blank(ARCHITECTURE, "language-modelling")
    torch.manual_seed(0)
    assert torch.equal(layers[0].weight, nn.Linear(100, 100).weight)


def test_two_threads_leave_the_number_of_torch_threads_as_it_was() -> None:
    before = torch.get_num_threads()

    def counted() -> int:
        with one_thread():
            return torch.get_num_threads()

    assert set(beside(counted, 500)) == {1}
    assert torch.get_num_threads() == before


def test_replaced_initialisers_end_what_would_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(tensor: torch.Tensor, *_: object) -> torch.Tensor:
        return tensor

    monkeypatch.setattr(nn.init, "kaiming_uniform_", empty)
    with pytest.raises(ConfigError, match=r"torch.nn.init.kaiming_uniform_: it is .*\.empty, so"):
        drawn()


def test_no_attack_counts_under_replaced_initialisers(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(TEXT)
    simulate(run)
    monkeypatch.setattr(nn.init, "normal_", lambda tensor: tensor)
    with pytest.raises(ConfigError, match=r"torch.nn.init.normal_: it is"):
        execute(run, ("attack",), quiet=True)
