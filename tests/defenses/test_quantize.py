"""Quantisation: what comes out, how far it may be off, and how little that protects."""

import math

import pytest
import torch

from fedsim.defenses.quantize import Quantize
from fedsim.types import Tensors
from tests.defenses.cases import rng


def update() -> Tensors:
    source = rng(3)
    return {
        "w": torch.randn(40, 30, generator=source) * 1e-3,
        "empty": torch.zeros(0),
        "zero": torch.zeros(7),
        "b": torch.tensor([5.0, 0.0, -1e-6, 70_000.0]),
    }


@pytest.mark.parametrize(("kind", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_halves_are_those_of_torch_but_for_infinity(kind: str, dtype: torch.dtype) -> None:
    sent = Quantize(kind=kind).on_update(update(), rng())  # type: ignore[arg-type]
    assert torch.equal(sent["w"], update()["w"].to(dtype).float())
    largest = 65_504.0 if kind == "fp16" else update()["b"][3].to(dtype).item()
    assert sent["b"][3].item() == largest
    assert sent["b"][0].item() == 5.0


def test_int8_has_even_steps_up_to_the_largest() -> None:
    sent = Quantize(kind="int8").on_update(update(), rng())
    step = update()["w"].abs().max() / 127
    codes = sent["w"] / step
    torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-4)
    assert codes.round().abs().max() == 127
    assert len(codes.round().unique()) > 100
    assert sent["zero"].tolist() == [0.0] * 7
    assert sent["empty"].shape == (0,)


@pytest.mark.parametrize("kind", ["fp16", "bf16", "int8"])
def test_the_truth_lies_within_the_slack(kind: str) -> None:
    defense = Quantize(kind=kind)  # type: ignore[arg-type]
    given = {name: value for name, value in update().items() if name in {"w", "zero"}}
    sent = defense.on_update(given, rng())
    slack = defense.slack(sent)
    for name, value in given.items():
        off = (value - sent[name]).abs()
        assert bool((off <= slack[name] * (1 + 1e-4)).all()), name
    # And the bound is no larger than it has to be.
    assert ((given["w"] - sent["w"]).abs() / slack["w"]).max() > 0.9


def test_qsgd_takes_one_of_two_neighbours_and_is_right_on_average() -> None:
    value = torch.tensor([0.3, -0.4, 0.0, 1.2])
    norm, levels = 1.3, 4
    defense = Quantize(kind="qsgd", levels=levels, bucket=0)
    drawn = torch.stack([defense.on_update({"w": value}, rng(i))["w"] for i in range(2000)])
    codes = drawn * levels / norm
    assert torch.allclose(codes, codes.round(), atol=1e-5)
    exact = value * levels / norm
    assert set(codes[:, 0].round().tolist()) == {0.0, 1.0}
    assert set(codes[:, 1].round().tolist()) == {-2.0, -1.0}
    assert set(codes[:, 2].tolist()) == {0.0}
    assert set(codes[:, 3].round().tolist()) == {3.0, 4.0}
    # A coordinate's deviation is at most half a step.
    assert (codes.mean(0) - exact).abs().max() < 4 * 0.5 / math.sqrt(2000)


def test_qsgd_has_a_norm_for_each_bucket_and_depends_on_the_generator() -> None:
    value = torch.cat([torch.full((512,), 1e-4), torch.full((100,), 10.0)])
    defense = Quantize(kind="qsgd", levels=1)
    sent = defense.on_update({"w": value}, rng())["w"]
    assert sent[:512].unique().tolist() == pytest.approx([0.0, 1e-4 * math.sqrt(512)])
    assert sent[512:].unique().tolist() == pytest.approx([0.0, 100.0])
    assert torch.equal(sent, defense.on_update({"w": value}, rng())["w"])
    assert not torch.equal(sent, defense.on_update({"w": value}, rng(1))["w"])
    # Many levels leave nearly all.
    fine = Quantize(kind="qsgd", levels=65_535).on_update({"w": value}, rng())["w"]
    torch.testing.assert_close(fine, value, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("kind", ["fp16", "bf16", "int8", "qsgd"])
def test_untouched_rows_stay_readable(kind: str) -> None:
    rows = torch.zeros(50, 8)
    rows[[3, 17]] = torch.randn(2, 8, generator=rng())
    sent = Quantize(kind=kind).on_update({"w": rows}, rng())["w"]  # type: ignore[arg-type]
    assert torch.nonzero(sent.any(1))[:, 0].tolist() == [3, 17]


def test_distortions() -> None:
    assert Quantize(kind="int8").distortions == {"rounding"}
    assert Quantize(kind="qsgd").distortions == {"noise"}
    assert Quantize(kind="int8", stage="sample").distortions == {"noise"}
    given = update()
    assert Quantize(kind="int8").surrogate(given) is given
