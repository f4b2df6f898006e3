"""Every record beside the model is listed; what is a gradient is read, and what is not is said."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsim
from experiments.captures.guess import Guess
from experiments.captures.update import Update
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureStore
from fedsim.types import Tensors
from server.capture_writer import CaptureWriter
from server.replies import Reply, Sent
from tests.experiments.captures.conftest import loss

SHAPE = (1, 8, 8)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 4))


def picture() -> Tensor:
    coarse = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(7))
    return F.interpolate(coarse, size=8, mode="bicubic").clamp(0.01, 1)


def trained(optimizer: str) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    before, after = net(), net()
    kinds: dict[str, Any] = {
        "adam": torch.optim.AdamW(after.parameters(), lr=1e-3),
        "sgd": torch.optim.SGD(after.parameters(), lr=0.1, momentum=0.9),
    }
    F.cross_entropy(after(picture()), torch.tensor([2])).backward()
    kinds[optimizer].step()
    return before, after, kinds[optimizer]


def victim(folder: Path, optimizer: str, beside: Any, noise: float = 0.0) -> Update:
    """The capture of a client that sends this beside its weights, which it covers by noise."""
    before, after, state = trained(optimizer)
    rng = torch.Generator().manual_seed(3)
    for value in after.parameters():
        value.data += noise * torch.randn(value.shape, generator=rng)
    sent, received, more = (
        {name: value.detach().numpy() for name, value in tensors.items()}
        for tensors in (before.state_dict(), after.state_dict(), beside(after, state))
    )
    writer = CaptureWriter(CaptureStore(folder), None)
    reply = Reply(3, None, Knowledge(), received, Sent("arrays", sent), 1, more)
    writer.submit(1, [reply])
    writer.flush()
    (update,) = fedsim.captured(folder, before, loss=loss, image_shape=SHAPE, input_range=(0, 1))
    return update  # type: ignore[no-any-return]


def moments(which: str, form: str) -> Callable[..., Tensors]:
    def made(after: nn.Module, state: torch.optim.Optimizer) -> Tensors:
        names = enumerate(after.named_parameters())
        return {
            form.format(name=name, number=number, which=which): state.state[value][which]
            for number, (name, value) in names
        }

    return made


def slopes(change: Callable[[Tensor, Tensor], Tensor], record: str) -> Callable[..., Tensors]:
    def made(after: nn.Module, state: torch.optim.Optimizer) -> Tensors:
        weights = dict(net().named_parameters())
        return {
            f"{record}/{name}": change(value.grad, weights[name])
            for name, value in after.named_parameters()
            if value.grad is not None
        }

    return made


def vector(after: nn.Module, state: torch.optim.Optimizer) -> Tensors:
    values = [state.state[value]["exp_avg"].flatten() for value in after.parameters()]
    return {"metrics/moment": torch.cat(values).double(), "metrics/losses": torch.rand(5)}


def both(after: nn.Module, state: torch.optim.Optimizer) -> Tensors:
    first = moments("exp_avg", "optimizer/state.{number}.{which}")(after, state)
    second = moments("exp_avg_sq", "optimizer/state.{number}.{which}")(after, state)
    steps = {f"optimizer/state.{number}.step": torch.ones(()) for number in range(4)}
    return first | second | steps


def packed(write: Callable[[Tensors], bytes]) -> Callable[..., Tensors]:
    """As ``ConfigRecord`` holds what a client packed."""

    def made(after: nn.Module, state: torch.optim.Optimizer) -> Tensors:
        gradient = {name: value.grad for name, value in after.named_parameters()}
        raw = write({name: value for name, value in gradient.items() if value is not None})
        return {"extra/gradient": torch.frombuffer(bytearray(raw), dtype=torch.uint8)}

    return made


def npz(tensors: Tensors) -> bytes:
    file = io.BytesIO()
    arrays: dict[str, Any] = {name: value.numpy() for name, value in tensors.items()}
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def pickled(tensors: Tensors) -> bytes:
    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue()


READ: dict[str, tuple[Callable[..., Tensors], str]] = {
    "moment": (moments("exp_avg", "optimizer/{which}.{name}"), "a gradient up to its length"),
    "moment by place": (moments("exp_avg", "state/{number}"), "a gradient up to its length"),
    "second moment": (moments("exp_avg_sq", "optimizer/{name}"), "squares of a gradient"),
    "gradient": (slopes(lambda g, w: g, "gradients"), "a gradient up to its length"),
    "ascent": (slopes(lambda g, w: -g, "directions"), "minus a gradient"),
    "absolute": (slopes(lambda g, w: g.abs(), "importance"), "absolute values of a gradient"),
    "Fisher": (slopes(lambda g, w: g.square(), "fisher"), "squares of a gradient"),
    "saliency": (slopes(lambda g, w: (g * w).abs(), "scores"), "scores |g w| of a gradient"),
    "list in metrics": (vector, "a gradient up to its length"),
    "npz": (packed(npz), "a gradient up to its length"),
    "safetensors": (packed(safetensors.torch.save), "a gradient up to its length"),
    "torch.save": (packed(pickled), "a gradient up to its length"),
    "whole state": (both, "a gradient up to its length"),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", READ)
def test_a_record_that_shows_the_gradient_is_read(name: str, tmp_path: Path) -> None:
    """Under Adam the weights tell signs alone: a guess of some 6 dB without the record."""
    beside, what = READ[name]
    update = victim(tmp_path, "adam", beside)
    assert f"beside it was read as {what}" in update.match
    assert not update.doubt
    guess: Guess = fedsim.attack(update, "closed_form", quiet=True)
    assert guess.certified == (True,)
    assert fedsim.score(guess, truth=picture()).mean("psnr") > 60


def test_tensors_behind_the_models_own_are_read(tmp_path: Path) -> None:
    before, after, _ = trained("adam")
    sent, received = before.state_dict(), after.state_dict()
    more = {f"grad.{n}": value.grad for n, value in after.named_parameters()}
    arrays = {name: value.numpy() for name, value in (received | more).items() if value is not None}
    start = Sent("arrays", {name: value.numpy() for name, value in sent.items()})
    writer = CaptureWriter(CaptureStore(tmp_path), None)
    writer.submit(1, [Reply(3, None, Knowledge(), arrays, start, 1)])
    writer.flush()
    (update,) = fedsim.captured(tmp_path, before, loss=loss, image_shape=SHAPE)
    assert "'model' beside it was read as a gradient" in update.match
    guess: Guess = fedsim.attack(update, "closed_form", quiet=True)
    assert guess.certified == (True,)


def test_the_gradient_of_one_layer_alone_is_named(tmp_path: Path) -> None:
    def first(after: nn.Module, state: torch.optim.Optimizer) -> Tensors:
        return {"metrics/first": after.get_parameter("1.weight").grad.flatten()}  # type: ignore[union-attr]

    update = victim(tmp_path, "adam", first)
    assert "'metrics', 1 tensor of the size of '1.weight', which were not read" in update.doubt


@pytest.mark.parametrize("raw", [b"\x93NUMPY", b"PK\x03\x04", b"0"])
def test_bytes_that_are_no_arrays_stay_bytes(raw: bytes, tmp_path: Path) -> None:
    beside = {"extra/blob": torch.frombuffer(bytearray(raw), dtype=torch.uint8)}
    update = victim(tmp_path, "sgd", lambda *_: beside)
    assert "'extra' (1 tensor, not read)" in str(update)
    assert not update.doubt


def test_a_record_that_says_no_more_changes_nothing(tmp_path: Path) -> None:
    buffer = moments("momentum_buffer", "optimizer/{name}")
    update = victim(tmp_path / "with", "sgd", buffer)
    alone = victim(tmp_path / "without", "sgd", lambda *_: {})
    assert (update.match, update.doubt) == (alone.match, alone.doubt)
    assert [record.read_as for record in update.reading.wire] == [
        "weights",
        "a multiple of the update",
    ]
    for name, value in alone.observation.received.items():
        assert torch.equal(update.observation.received[name], value)


def test_nothing_is_said_to_be_hidden_while_tensors_are_unread(tmp_path: Path) -> None:
    unread: dict[str, Callable[..., Tensors]] = {
        "alone": lambda *_: {},
        "by name": slopes(lambda g, w: torch.randn_like(g), "state"),
        "in metrics": lambda after, _: {"metrics/moment": torch.randn(64 * 40 + 40 + 40 * 4 + 4)},
    }
    for name, beside in unread.items():
        update = victim(tmp_path / name, "sgd", beside, noise=1.0)
        guess: Guess = fedsim.attack(update, "closed_form", budget=1, quiet=True)
        assert ("next to nothing" in guess.note) == (name == "alone")
        assert ("were not read" in guess.note) == (name != "alone")


@pytest.mark.parametrize("name", ["absolute", "Fisher", "saliency"])
def test_no_record_is_read_with_signs_that_noise_covers(name: str, tmp_path: Path) -> None:
    update = victim(tmp_path, "adam", READ[name][0], noise=0.01)
    assert "unread_record" in update.reading.codes


def test_numbers_of_other_shapes_raise_no_doubt(tmp_path: Path) -> None:
    beside = {"metrics/losses": torch.rand(5), "mask/rows": torch.rand(3, 2)}
    update = victim(tmp_path, "sgd", lambda *_: beside)
    assert not update.doubt
    assert "'mask' (1 tensor, not read)" in str(update)


@pytest.mark.some(2)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_tensors_of_the_models_shapes_that_are_not_read_are_said(
    optimizer: str, tmp_path: Path
) -> None:
    def random(after: nn.Module, state: torch.optim.Optimizer) -> Tensors:
        rng = torch.Generator().manual_seed(1)
        names = after.state_dict()
        return {f"other/{k}": torch.randn(v.shape, generator=rng) for k, v in names.items()}

    update = victim(tmp_path, optimizer, random)
    (unread,) = [each for each in update.reading.findings if each.code == "unread_record"]
    assert unread.hides
    assert "'other', 4 tensors" in unread.said
    assert "'other' (4 tensors of the model's shapes, not read)" in str(update)
    guess: Guess = fedsim.attack(update, "spear", quiet=True, budget=1)
    assert guess.certified == (True,) or "not read" in guess.note
