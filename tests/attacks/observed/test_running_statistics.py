"""What running statistics say of batches: closed forms of the momentum and of the variance."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attacks.observed.running_statistics import (
    MEAN,
    VARIANCE,
    broadcast_and_steps,
    counted_batches,
    facts_shown,
    tracking_layers,
    without_broadcast,
)
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Observation
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


def counted_from(sent: Tensor, received: Tensor) -> int | None:
    """What a layer counted whose counters crossed the wire as these."""
    network = nn.Sequential(nn.BatchNorm1d(3))
    names = ("0.running_mean", "0.num_batches_tracked")
    before = dict(zip(names, (torch.zeros(3), sent), strict=True))
    after = dict(zip(names, (torch.ones(3), received), strict=True))
    key = CaptureKey(round=2, client=0)
    seen = Observation(key, before, after, "weights", Knowledge())
    shown = facts_shown(seen, network)
    count = counted_batches(seen, "0", network[0])  # type: ignore[arg-type]
    assert shown == ({"local_steps": count, "train_mode": True} if count else {})
    return count


@pytest.mark.parametrize(
    ("sent", "received", "count"),
    [
        (5.75, 9.0, 4),  # the mean of 6, 5 and 6 batches; a client loads 5
        (5.999, 9.0, 4),
        (5.25, 6.0, 1),
        (5.0, 9.0, 4),
        (5.0, 9.5, None),  # itself a mean, of several clients
        (5.0, 5.0, 0),
    ],
)
def test_a_mean_of_counters_is_cut_as_torch_cuts_it(
    sent: float, received: float, count: int | None
) -> None:
    assert counted_from(torch.tensor(sent), torch.tensor(received)) == count
    if count:
        loaded = nn.BatchNorm1d(3)
        loaded.load_state_dict(loaded.state_dict() | {"num_batches_tracked": torch.tensor(sent)})
        assert loaded.num_batches_tracked is not None
        assert int(loaded.num_batches_tracked) + count == received


@pytest.mark.parametrize(
    ("dtype", "received", "count"),
    [
        (torch.bfloat16, 120.0, 4),
        (torch.bfloat16, 260.0, None),
        (torch.float16, 1000.0, 4),
        (torch.float16, 2052.0, None),
        (torch.float32, 2052.0, 4),
        (torch.int64, 2052.0, 4),
    ],
)
def test_no_count_is_read_where_the_format_holds_none(
    dtype: torch.dtype, received: float, count: int | None
) -> None:
    sent = torch.tensor(received - 4)
    assert counted_from(sent.to(dtype), torch.tensor(received).to(dtype)) == count


def test_frozen_layers_count_nothing() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    before = network.state_dict()
    after = before | {"0.num_batches_tracked": torch.tensor(4)}
    seen = Observation(CaptureKey(round=2, client=0), before, after, "weights", Knowledge())
    assert facts_shown(seen, network) == {"local_steps": 4}


def test_the_share_of_the_broadcast_is_by_the_count_that_was_loaded() -> None:
    layer = nn.BatchNorm1d(3, momentum=None)
    sent = {"0.num_batches_tracked": torch.tensor(5.75)}
    seen = Observation(CaptureKey(round=2, client=0), sent, {}, "weights", Knowledge())
    weights = broadcast_and_steps(seen, "0", layer, 1)
    assert weights.tolist() == pytest.approx([5 / 6, 1 / 6])
