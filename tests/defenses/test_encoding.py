"""Packed sizes against counts by hand."""

import math

import pytest
import torch

from fedsim.defenses import build_chain
from fedsim.defenses.encoding import Encoding
from fedsim.types import Tensors

DENSE = torch.arange(1.0, 1001.0)
FEW = torch.zeros(1000)
FEW[:10] = 1.0
MANY = torch.ones(1000)
MANY[:100] = 0.0


@pytest.mark.parametrize(
    ("encoding", "tensor", "size"),
    [
        (Encoding(), DENSE, 4000),
        (Encoding(), DENSE.double(), 8000),
        (Encoding(), FEW, 4000),
        (Encoding(bits=16), DENSE, 2000),
        (Encoding(bits=8, bucket=0), DENSE, 1004),
        # 10 values of 32 bits with indices of 10 bits.
        (Encoding(sparse=True), FEW, math.ceil(10 * 42 / 8)),
        # 900 values of 32 bits behind a bitmap of 1000; indices would take 9000 bits.
        (Encoding(sparse=True), MANY, (1000 + 900 * 32) // 8),
        # Without zeros a bitmap is a waste.
        (Encoding(sparse=True), DENSE, 4000),
        (Encoding(bits=1, zero=False, sparse=True), DENSE, 125),
        (Encoding(bits=1, zero=False, sparse=True), FEW, math.ceil(10 * 11 / 8)),
        (Encoding(bits=1, zero=False, sparse=True, bucket=0), MANY, math.ceil(1900 / 8) + 4),
        (Encoding(bits=8, bucket=512), DENSE, 1000 + 2 * 4),
        (Encoding(bits=1), torch.arange(5), 40),
    ],
)
def test_size(encoding: Encoding, tensor: torch.Tensor, size: int) -> None:
    assert encoding.size(tensor) == size


def sized(*tables: dict[str, object]) -> int:
    chain = build_chain(tables, "defense")
    update: Tensors = {"w": torch.randn(1024, generator=torch.Generator().manual_seed(0))}
    sent = chain.on_update(update, torch.Generator().manual_seed(0))["w"]
    return chain.encode(Encoding()).size(sent)


@pytest.mark.parametrize(
    ("tables", "size"),
    [
        ([], 4096),
        ([{"name": "gaussian_noise", "std": 0.1}], 4096),
        ([{"name": "clip", "norm": 1.0}], 4096),
        ([{"name": "sign"}], 128),
        ([{"name": "sign", "scale": "mean"}], 132),
        # 102 coordinates, and a bitmap that is as long as 102 indices of ten bits are longer.
        ([{"name": "prune", "fraction": 0.9}], math.ceil(102 * 42 / 8)),
        ([{"name": "prune", "fraction": 0.9}, {"name": "sign"}], math.ceil(102 * 11 / 8)),
        ([{"name": "prune", "fraction": 0.9}, {"name": "gaussian_noise", "std": 1.0}], 4096),
        ([{"name": "prune", "fraction": 0.9}, {"name": "quantize", "kind": "fp16"}], 332),
        ([{"name": "quantize", "kind": "fp16"}], 2048),
        ([{"name": "quantize", "kind": "bf16"}], 2048),
        ([{"name": "quantize", "kind": "int8"}], 1028),
        ([{"name": "quantize", "kind": "qsgd"}], 1024 + 8),
        # One level and a sign: three codes take two bits.
        ([{"name": "quantize", "kind": "qsgd", "levels": 1, "bucket": 0}], 256 + 4),
        ([{"name": "quantize", "kind": "int8"}, {"name": "sign"}], 0),
    ],
)
def test_a_chain_packs_what_its_last_defense_leaves(
    tables: list[dict[str, object]], size: int
) -> None:
    if not size:  # what int8 rounds to 0 has no sign, so that a bitmap is needed
        assert 128 < sized(*tables) <= 256
        return
    assert sized(*tables) == size


@pytest.mark.parametrize("name", ["optimal_noise", "tip"])
def test_noise_after_rounding_fills_all_bits(name: str) -> None:
    chain = build_chain([{"name": "quantize", "kind": "int8"}, {"name": name}], "defense")
    assert chain.encode(Encoding()) == Encoding()
