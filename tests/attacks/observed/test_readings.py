"""What a tensor shows of how it was sent: signs, zeros, grids and formats of the wire."""

import pytest
import torch
from torch import Tensor

from attacks.observed.distortion import read_distortion
from attacks.observed.labels import Head
from attacks.observed.readings import coarseness, read
from attacks.observed.token_types import types_note
from attacks.proofs.consistency import EntryBounds, bounds_of
from benchmarks.treatments import int8
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Observation


def drawn(seed: int = 0, rows: int = 16, columns: int = 32) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=rng, dtype=torch.float64)


def test_a_grid_is_found_whatever_its_smallest_entry() -> None:
    value = drawn()
    step = float(value.abs().max()) / 127
    seen = read(int8(value))
    assert seen.step == pytest.approx(step, rel=1e-6)
    assert seen.complete
    assert bool(seen.sent.all())
    # No entry of one step is left.
    sparse = torch.tensor([[2.0, 3.0, -5.0, 0.0] * 32]).double()
    assert read(0.1 * sparse).step == pytest.approx(0.1)
    assert read(value).step == read(value.float().double()).step == 0
    # In float32 weights, steps of the update are rounded as well.
    weights = drawn(1).float()
    assert read(weights.double() - (weights - int8(value).float())).step == pytest.approx(
        step, 1e-3
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_a_step_bounds_what_a_format_rounds(dtype: torch.dtype) -> None:
    value = drawn()
    rounded = value.to(dtype)
    for wire in (rounded, rounded.float()):  # as sent, or cast back
        half = read(rounded.double()).half_step(wire)
        assert bool(((value - rounded.double()).abs() <= half).all())
        assert bool((half <= value.abs() * torch.finfo(dtype).eps).all())
    exact = read(value).half_step(value.float())
    assert bool(((value - value.float().double()).abs() <= exact).all())
    assert bool((read(int8(value)).half_step(int8(value)) >= (value - int8(value)).abs()).all())


def test_what_was_sent() -> None:
    value = drawn()
    top = value * (value.abs() > 1)
    assert torch.equal(read(top).sent, top != 0)
    assert not read(top).signs
    signs = value.sign()
    signs[0, 0] = 0
    assert read(signs).signs
    assert torch.equal(read(signs).sent, signs != 0)
    assert read(value, "adam").signs


def bracket(value: Tensor) -> EntryBounds:
    return bounds_of(value, value, None)


def test_brackets_hold_the_truth() -> None:
    value = drawn()
    coarse, top, signs = int8(value), value * (value.abs() > 1), value.sign()
    for received, entries in ((coarse, value.numel()), (value, value.numel())):
        assert bracket(received).compare(value.float(), 1.0) == (0, entries)
    assert bracket(top).compare(value.float(), 1.0) == (0, int((top != 0).sum()))
    signs[0, :4] = 0
    assert bracket(signs).compare(value.float(), 7.0)[0] == 0
    assert bracket(coarse).compare(-value.float(), 1.0)[0] > 400


HEAD = Head("head", "weight", "bias")


def update(value: Tensor) -> dict[str, Tensor]:
    """The gradient of a last layer on one example: of rank 1."""
    return {"weight": torch.outer(value[:, 0], value[0, :-1]), "bias": value[:, 0] * value[0, -1]}


def test_the_variance_of_rounding_is_that_of_its_errors() -> None:
    true = update(drawn())
    for received in (
        {name: int8(value) for name, value in true.items()},
        {name: value.half().double() for name, value in true.items()},
    ):
        seen = read_distortion(received, received, 1.0, HEAD)
        assert not seen.pruned
        assert not seen.signs
        errors = torch.cat([(true[name] - received[name]).flatten() for name in true])
        weight = slice(0, seen.sizes[0])
        assert 0.2 < float(errors[weight].square().mean() / seen.variance[weight].mean()) < 1.2


def test_what_pruning_left_of_an_update() -> None:
    true = update(drawn())
    pruned = {name: value * (value.abs() > 1) for name, value in true.items()}
    seen = read_distortion(pruned, pruned, 1.0, HEAD)
    assert torch.equal(seen.sent, seen.values != 0)
    assert float(seen.bound) >= 1
    gone = {**true, "weight": pruned["weight"], "bias": torch.zeros(16).double()}
    assert not read_distortion(gone, gone, 1.0, HEAD).sent[-16:].any()
    # Of few kept entries, most share a row or column with no other.
    few = {name: value * (value.abs() > 5) for name, value in true.items()}
    seen = read_distortion(few, few, 1.0, HEAD)
    assert torch.equal(seen.sent, seen.values != 0)
    signs = {name: value.sign() for name, value in true.items()}
    assert read_distortion(signs, signs, 1.0, HEAD).signs


def test_what_single_tensors_look_like_is_not_said_of_an_update() -> None:
    rng = torch.Generator().manual_seed(0)
    whole = {"weight": torch.randn(64, 64, generator=rng)}
    few = torch.randn(12, 12, generator=rng)
    grid, ones = (4 * few).round(), few.sign()
    largest = few * (few.abs() > 1)
    for odd in (grid, ones, largest):
        assert coarseness(whole | {"few": odd}) == ""
    assert "rounded to a grid" in coarseness({"few": grid, "bias": whole["weight"][0]})
    assert "of one size" in coarseness({"few": ones, "bias": whole["weight"][0]})
    assert coarseness({"few": ones}, "adam") == ""
    assert "only the largest entries" in coarseness({"few": largest})


def test_token_types_of_pairs_are_said() -> None:
    name = "bert.embeddings.token_type_embeddings.weight"
    rows = torch.tensor([[0.3, -0.2], [0.1, 0.4]])
    for second, said in ((1.0, True), (1e-4, False), (0.0, False)):
        received = {name: rows * torch.tensor([[1.0], [second]])}
        key = CaptureKey(round=1, client=0)
        seen = Observation(key, {name: torch.zeros(2, 2)}, received, "gradient", Knowledge())
        assert ("tokens have the type 1 as well" in types_note(seen)) == said
