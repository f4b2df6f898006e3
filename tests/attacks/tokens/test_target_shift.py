"""Labels that were shifted twice are named, and only they."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch.nn.functional import cross_entropy

from attacks.tokens import target_shift
from attacks.tokens.target_shift import shift_note
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Batch
from tests.attacks.victims import Victim, trained


@pytest.fixture(scope="module")
def gpt2() -> Victim:
    return trained("tiny-gpt2", 20)


def shifted(victim: Victim, row: int, shift: int) -> tuple[Observation, Batch]:
    """The gradient of one text towards the words so many places later."""
    seen, truth = victim.capture([row])
    network = victim.task.model(seen.sent)
    length = int(truth.mask.sum()) if truth.mask is not None else truth.inputs.shape[1]
    ids = truth.inputs[:, :length]
    logits = cast(Any, network)(input_ids=ids).logits
    loss = cross_entropy(logits[:, :-shift].flatten(0, 1), ids[:, shift:].flatten())
    parameters = dict(network.named_parameters())
    slopes = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    received = {
        name: slope.detach()
        for name, slope in zip(parameters, slopes, strict=True)
        if slope is not None
    }
    return replace(seen, received=received, kind="gradient"), Batch(ids, truth.labels)


@pytest.mark.some(4)
@pytest.mark.parametrize("scale", [0.5, 1, 2])
@pytest.mark.parametrize("row", [3, 5, 8])
def test_a_shift_by_two_is_named(
    gpt2: Victim, row: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_shift, "_NEARER", scale * target_shift._NEARER)
    task = gpt2.task
    assert isinstance(task, TextTask)
    for shift in (1, 2):
        seen, truth = shifted(gpt2, row, shift)
        # The last words are no inputs that matter, so that the span does not hold them.
        cut = replace(truth, inputs=truth.inputs[:, :-shift])
        said = shift_note(seen, task, cut)
        assert ("the targets are not the next words" in said) == (shift == 2)
