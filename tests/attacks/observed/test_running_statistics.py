"""What running statistics say of batches: closed forms of the momentum and of the variance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attacks.observed.running_statistics import (
    MEAN,
    VARIANCE,
    broadcast_and_steps,
    counted_batches,
    tracking_layers,
    without_broadcast,
)
from fedsim.types import Batch
from tests.attacks.normalised import normalised, train_client

Pictures = Callable[..., Batch]


def taken_in(batch: Batch, momentum: float | None, layer: str) -> Tensor:
    """What a layer of the broadcast network is given of the batch, in train mode."""
    task, sent = normalised(momentum)
    network = task.model(sent).train()
    inputs: list[Tensor] = []
    network.get_submodule(layer).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        network(batch.inputs)
    return inputs[0]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("momentum", "weights"), [(0.1, [0.81, 0.9, 1.0]), (None, [1.0] * 3)])
def test_the_broadcast_is_taken_out(
    pictures: Pictures, momentum: float | None, weights: list[float], steps: int
) -> None:
    task, sent = normalised(momentum)
    batch = pictures(2 * steps, *[1, 3] * steps)
    plan = [(2 * step, 2 * step + 1) for step in range(steps)]
    seen = train_client(task, sent, batch, plan, protocol="fedavg", batch_size=2)
    layers = tracking_layers(seen, task.model(sent))
    assert list(layers) == ["1", "4"]
    assert counted_batches(seen, "1", layers["1"]) == steps
    statistics = without_broadcast(seen, layers, steps)
    inputs = [taken_in(batch[list(step)], momentum, "1") for step in plan]
    share = torch.tensor(weights[-steps:]) / sum(weights[-steps:])
    values = torch.stack([value.transpose(0, 1).flatten(1) for value in inputs])
    # The layer adds up variances with n - 1 in the denominator, of n pixels of the batch.
    biased = (values - values.mean(2, keepdim=True)).square().mean(2)
    factor = values.shape[2] / (values.shape[2] - 1)
    assert factor > 1.001
    torch.testing.assert_close(statistics[MEAN + "1"], share @ values.mean(2), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        statistics[VARIANCE + "1"], share @ (factor * biased), rtol=1e-5, atol=1e-6
    )


def test_a_layer_that_never_moves_says_nothing(pictures: Pictures) -> None:
    task, sent = normalised(0.0)
    seen = train_client(task, sent, pictures(2, 1, 3))
    statistics = without_broadcast(seen, tracking_layers(seen, task.model(sent)), 1)
    assert set(statistics) == {MEAN + "4", VARIANCE + "4"}


def test_weights_add_up_and_older_batches_count_less_where_they_do(pictures: Pictures) -> None:
    task, sent = normalised(None)
    seen = train_client(task, sent, pictures(2, 1, 3))
    layers = tracking_layers(seen, task.model(sent))
    assert counted_batches(seen, "4", layers["4"]) is None  # PyTorch's own layer does not count
    assert broadcast_and_steps(seen, "1", layers["1"], 2).tolist() == pytest.approx([0.6, 0.2, 0.2])
    assert broadcast_and_steps(seen, "4", layers["4"], 2).tolist() == pytest.approx(
        [0.49, 0.21, 0.3]
    )
