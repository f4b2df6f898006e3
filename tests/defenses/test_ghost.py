"""Shadows of texts."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from fedsim.defenses.ghost import Ghost
from fedsim.errors import ConfigError
from fedsim.types import Batch
from tests.defenses.cases import NETWORK, rng, smooth


@pytest.fixture(scope="module")
def language() -> Any:
    torch.manual_seed(0)
    shape = {"vocab_size": 80, "n_positions": 16, "n_embd": 6, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0)).eval()


def texts() -> Batch:
    ids = torch.tensor([[0, 5, 17, 60, 5, 33, 0], [0, 9, 70, 41, 0, 0, 0]])
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    return Batch(ids, ids.where(mask > 0, -100), mask)


def choices(ghost: Ghost, model: Any, tokens: Tensor) -> list[set[int]]:
    table = F.normalize(model.get_input_embeddings().weight.detach(), dim=1)
    return [set(some.tolist()) for some in ghost.choices(table, tokens)]


def test_shadows_are_near_and_not_mutual_neighbours(language: Any) -> None:
    ghost, batch = Ghost(neighbours=10, overlap=0.3), texts()
    shadows = ghost.on_batch(batch, language, rng())
    inside = (batch.mask == 1) & (batch.inputs > 0)
    assert torch.equal(shadows.inputs[~inside], batch.inputs[~inside])
    assert torch.equal(shadows.labels, shadows.inputs.where(inside | (batch.labels >= 0), -100))
    assert (shadows.inputs[inside] != batch.inputs[inside]).all()
    originals = batch.inputs[inside]
    for few, shadow in zip(
        choices(ghost, language, originals), shadows.inputs[inside].tolist(), strict=True
    ):
        assert shadow in few
    table = F.normalize(language.get_input_embeddings().weight.detach(), dim=1)
    near = (table @ table.T).fill_diagonal_(-2).topk(10).indices.tolist()
    [few] = choices(Ghost(neighbours=10, overlap=0.3), language, torch.tensor([17]))
    expected = {c for c in near[17] if 17 not in near[c] and len({*near[c]} & {*near[17]}) <= 3}
    assert few == (expected or few)


def test_a_sweep_brings_the_states_nearer(language: Any) -> None:
    batch = texts()

    @torch.no_grad()
    def distance(sweeps: int) -> float:
        shadows = Ghost(neighbours=10, sweeps=sweeps, gain=0.0).on_batch(batch, language, rng())
        pairs = [
            language(input_ids=texts.inputs, output_hidden_states=True).hidden_states
            for texts in (batch, shadows)
        ]
        return sum(float((a[0] - b[0]).square().mean()) for a, b in zip(*pairs, strict=True))

    assert distance(3) <= distance(1)


def test_recovered_texts_are_ones_of_these_shadows(language: Any) -> None:
    ghost, batch = Ghost(neighbours=10, overlap=0.3), texts()
    shadows = ghost.on_batch(batch, language, rng())
    back = ghost.recover(shadows, language)
    inside = (batch.mask == 1) & (batch.inputs > 0)
    for few, shadow in zip(
        choices(ghost, language, back.inputs[inside]), shadows.inputs[inside].tolist(), strict=True
    ):
        assert shadow in few
    assert torch.equal(back.inputs[~inside], batch.inputs[~inside])


def test_ghost_refuses_what_is_no_language_model() -> None:
    with pytest.raises(ConfigError, match="a language model learns"):
        Ghost().on_batch(smooth(2), NETWORK, rng())
