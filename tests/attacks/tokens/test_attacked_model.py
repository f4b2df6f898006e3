"""The model under attack: its update and its layers are read once, whoever asks for them."""

from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest
import torch

from attacks.base import Job
from attacks.span.span import Span
from attacks.tokens.attacked_model import AttackedModel, ReadOnce
from attacks.tokens.first_layers import FirstLayers
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Tensors
from tests.attacks.victims import Victim, trained

ADAMW = {"protocol": "fedavg", "optimizer": "adamw", "learning_rate": 5e-5, "local_steps": 1}
SIGNS = {"name": "sign"}


@pytest.fixture(scope="module")
def gpt2() -> Victim:
    return trained("tiny-gpt2", 20)


@pytest.fixture(scope="module")
def bert() -> Victim:
    return trained("tiny-bert", 10)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each tensor was turned into float64, and how often the layers were searched."""
    counts: Counter[str] = Counter()
    update, build = Observation.update, FirstLayers.__init__

    def counted(seen: Observation, names: Collection[str | None] | None = None) -> Tensors:
        read = update(seen, names)
        counts.update([*read])
        return read

    def built(layers: FirstLayers, *given: Any) -> None:
        counts["layers"] += 1
        build(layers, *given)

    monkeypatch.setattr(Observation, "update", counted)
    monkeypatch.setattr(FirstLayers, "__init__", built)
    return counts


@pytest.mark.some(3)
@pytest.mark.parametrize("victim", ["gpt2", "bert"])
@pytest.mark.parametrize("defenses", [(), (SIGNS,)])
def test_a_guess_reads_each_tensor_and_the_layers_once(
    victim: str, defenses: tuple[dict[str, object], ...], reads: Counter[str], request: Any
) -> None:
    own: Victim = request.getfixturevalue(victim)
    seen, _ = own.capture([5], *defenses)
    reads.clear()
    Span(work=2000).reconstruct([seen], own.task, [torch.Generator()], Job())
    assert reads["layers"] == 1
    assert set(reads.values()) == {1}
    assert reads.keys() - {"layers"} <= seen.received.keys()


@pytest.mark.parametrize("federation", [{}, ADAMW])
def test_what_is_read_once_is_the_update(gpt2: Victim, federation: dict[str, object]) -> None:
    seen, _ = gpt2.capture([5], **federation)
    assert isinstance(gpt2.task, TextTask)
    once = AttackedModel.of(seen, gpt2.task).observation
    assert isinstance(once, ReadOnce)
    few = [*seen.received][3:5]
    assert once.update((few[1], few[0], None, "absent")).keys() == set(few)
    whole = once.update()
    assert [*whole] == [*seen.update()]
    for name, value in seen.update().items():
        assert torch.equal(whole[name], value)
    assert once.update(few)[few[0]] is whole[few[0]]


def test_shorter_layers_are_those_of_a_shorter_text(gpt2: Victim) -> None:
    seen, _ = gpt2.capture([5])
    assert isinstance(gpt2.task, TextTask)
    model = AttackedModel.of(seen, gpt2.task)
    first_layers = FirstLayers(model.network, [7, 8, 9], gpt2.task.max_length)
    assert first_layers.places is not None
    assert model.layers.places is not None
    assert len(model.layers.places) >= len(first_layers.places)
    assert model.usual_layers.places is not None
    assert torch.equal(model.usual_layers.places, first_layers.places)
    assert model.usual_layers.tokens == first_layers.tokens
    assert model.usual_layers.contexts == first_layers.contexts
