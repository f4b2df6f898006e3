"""Defenses that change the examples: what they make of them, and what an attacker undoes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from fedsim.defenses.ghost import Ghost
from fedsim.defenses.mixup import Mixup
from fedsim.errors import ConfigError
from fedsim.types import Batch

NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smooth(count: int) -> Batch:
    pixels = F.avg_pool2d(torch.rand(count, 3, 32, 32, generator=rng()), 3, 1, 1)
    return Batch((pixels * 255).round() / 255, torch.arange(count))


def test_mixtures_and_their_classes_have_one_share_and_one_order() -> None:
    batch = smooth(4)
    mixed = Mixup().on_batch(batch, NETWORK, rng(1))
    torch.testing.assert_close(mixed.labels.sum(1), torch.ones(4))
    assert mixed.labels.shape == (4, 10)
    weights = mixed.labels[:, :4]
    torch.testing.assert_close(
        mixed.inputs, torch.einsum("ij,jchw->ichw", weights, batch.inputs), atol=1e-6, rtol=0
    )
    assert len(weights[weights > 0].unique()) <= 3  # s, 1 - s, and their sum of a fixed point


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bytes_tell_what_was_mixed(seed: int) -> None:
    batch = smooth(3)
    mixed = Mixup().on_batch(batch, NETWORK, rng(seed))
    read = mixed.inputs + 1e-5 * torch.randn(mixed.inputs.shape, generator=rng())
    images = Mixup().recover(Batch(read, mixed.labels), NETWORK).inputs
    nearest = torch.cdist(batch.inputs.flatten(1), images.flatten(1)).min(1).values
    assert not nearest.any()


def test_mixtures_that_are_not_known_exactly_stay() -> None:
    mixed = Mixup().on_batch(smooth(3), NETWORK, rng())
    blurred = Batch(mixed.inputs + 0.01 * torch.randn(3, 3, 32, 32, generator=rng()), mixed.labels)
    assert Mixup().recover(blurred, NETWORK) is blurred
    with pytest.raises(ConfigError, match="images with a class each"):
        Mixup().on_batch(Batch(torch.tensor([[1]]), torch.tensor([0])), NETWORK, rng())


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
