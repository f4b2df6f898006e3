"""The replayed gradient is the client's own, for any mode and any frozen part."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attacks.observed.replay import observed_gradient, replay
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch

Victim = Callable[..., tuple[Task, Observation]]
Pictures = Callable[..., Batch]
CPU = torch.device("cpu")


@pytest.mark.parametrize("model", ["lenet", "mlp", "resnet20"])
@pytest.mark.parametrize("train_mode", [False, True])
def test_gradient(victim: Victim, pictures: Pictures, model: str, train_mode: bool) -> None:
    batch = pictures(3, 1, 2, 2)
    task, seen = victim(batch, model=model, train_mode=train_mode)
    network = task.model(seen.sent).train(train_mode)
    expected = task.gradient(network, batch)
    copy = replay(seen, task, CPU)
    recorded = replace(batch, inputs=batch.inputs.clone().requires_grad_())
    made = [copy.gradient(batch), copy.pure_gradient(batch), copy.differentiable(batch)]
    made.append(copy.differentiable(recorded))
    with torch.no_grad():
        made.append(copy.differentiable(recorded))
    tracked = [any(value.requires_grad for value in gradient.values()) for gradient in made]
    assert tracked == [True, False, False, True, False]
    for gradient in made:
        assert list(gradient) == list(expected)
        torch.testing.assert_close(gradient, expected)
    buffers = dict(copy.network.named_buffers())
    assert all(torch.equal(value, seen.sent[name]) for name, value in buffers.items())
    assert bool(buffers) == (model == "resnet20" and not train_mode)


def test_frozen_parameters_are_left_out(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(1, 3)
    task, seen = victim(batch)
    kept = {name: value for name, value in seen.received.items() if name.startswith("fc")}
    gradient = replay(replace(seen, received=kept), task, CPU).gradient(batch)
    torch.testing.assert_close(gradient, kept)
    with pytest.raises(CannotAttack, match="the client sent no parameter"):
        replay(replace(seen, received={}), task, CPU)


def test_observed_gradient(victim: Victim, pictures: Pictures) -> None:
    batch = pictures(1, 3)
    _, plain = victim(batch)
    _, seen = victim(batch, step_size=0.1)
    torch.testing.assert_close(
        observed_gradient(seen), observed_gradient(plain), rtol=1e-4, atol=1e-5
    )
    halved = victim(batch, step_size=0.1, local_steps=2)[1]
    torch.testing.assert_close(
        observed_gradient(halved)["fc.bias"], observed_gradient(seen)["fc.bias"] / 2
    )


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"local_steps": None}, "needs local_steps, which the server does not know"),
        (
            {"local_steps": None, "learning_rate": None},
            "needs local_steps and learning_rate, which the server does not know",
        ),
        ({"optimizer": "adam"}, "a FedAvg update by 'adam' is no multiple of a gradient"),
    ],
)
def test_unknown_scale(
    victim: Victim, pictures: Pictures, facts: dict[str, object], message: str
) -> None:
    _, seen = victim(pictures(1, 3), step_size=0.1, **facts)
    with pytest.raises(CannotAttack, match=re.escape(message)):
        observed_gradient(seen)


class Cubed(torch.autograd.Function):
    """As a kernel written by hand: torch leaves its term out of a search's slope, unsaid."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values**3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> Tensor:
        slope: Tensor = 3 * slopes * ctx.saved_tensors[0] ** 2
        return slope


class Cubing(nn.Module):
    def forward(self, values: Tensor) -> Any:
        return Cubed.apply(values)  # type: ignore[no-untyped-call]


def test_an_operation_that_is_differentiable_once_is_refused(
    victim: Victim, pictures: Pictures
) -> None:
    task, seen = victim(batch := pictures(1, 3))
    copy = replay(seen, task, CPU)
    marked = replace(copy, network=nn.Sequential(copy.network, Cubing()))
    assert marked.gradient(batch, graph=False)
    with pytest.raises(CannotAttack, match=r"\(Cubed is once_differentiable\)"):
        marked.gradient(batch)
