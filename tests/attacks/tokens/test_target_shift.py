"""The distance of targets from their inputs is named where there is one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, cast

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attacks.tokens.target_shift import shift_note
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Batch
from tests.attacks.victims import Victim, trained

Seen: TypeAlias = tuple[Observation, Batch]


@pytest.fixture(scope="module")
def gpt2() -> Victim:
    return trained("tiny-gpt2", 20)


def towards(victim: Victim, row: int, targets: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Seen:
    """The gradient of one text towards targets: places and what is asked there, of its words."""
    seen, truth = victim.capture([row])
    network = victim.task.model(seen.sent)
    length = int(truth.mask.sum()) if truth.mask is not None else truth.inputs.shape[1]
    ids = truth.inputs[:, :length]
    places, asked = targets(ids[0])
    loss = cross_entropy(cast(Any, network)(input_ids=ids).logits[0, places], asked)
    parameters = dict(network.named_parameters())
    slopes = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    received = {
        name: slope.detach()
        for name, slope in zip(parameters, slopes, strict=True)
        if slope is not None
    }
    return replace(seen, received=received, kind="gradient"), Batch(ids, truth.labels)


def later(words: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    return torch.arange(len(words) - shift), words[shift:]


@pytest.mark.some(3)
@pytest.mark.parametrize("row", [3, 5, 8])
@pytest.mark.parametrize("shift", range(4))
def test_the_distance_of_targets_is_named(gpt2: Victim, row: int, shift: int) -> None:
    task = gpt2.task
    assert isinstance(task, TextTask)
    seen, truth = towards(gpt2, row, lambda words: later(words, shift))
    # The last words are no inputs that matter, so that the span does not hold them.
    cut = replace(truth, inputs=truth.inputs[:, : truth.inputs.shape[1] - shift])
    said = shift_note(seen, task, cut)
    assert ("targets are" in said) == (shift != 1)
    assert (f" {shift} places on" in said) == (shift > 1)


@pytest.mark.some(3)
@pytest.mark.parametrize("row", [3, 5, 8])
@pytest.mark.parametrize("name", ["turned round", "of another text"])
def test_no_distance_is_named_where_there_is_none(gpt2: Victim, row: int, name: str) -> None:
    task = gpt2.task
    assert isinstance(task, TextTask)
    other = gpt2.capture([row + 3])[1].inputs[0]

    def targets(words: Tensor) -> tuple[Tensor, Tensor]:
        asked = words.flip(0) if name == "turned round" else other
        asked = asked[1 : len(words)]
        return torch.arange(len(asked)), asked

    seen, truth = towards(gpt2, row, targets)
    assert not shift_note(seen, task, truth)
