"""PRECODE: what its draws do, and that an attacker reads them off the update of one example."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from attacks.images.image_losses import matching_loss
from attacks.observed.labels import find_head
from attacks.observed.replay import replay
from fedsim.models.precode import PrecodeLeNet, VariationalBottleneck, divergences
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch


def bottleneck() -> VariationalBottleneck:
    torch.manual_seed(0)
    return VariationalBottleneck(12, 5)


def test_it_draws_where_gradients_are_taken_and_nowhere_else() -> None:
    part, features = bottleneck(), torch.randn(3, 12)
    assert not torch.equal(part(features), part(features))
    with torch.no_grad():
        assert torch.equal(part(features), part(features))


def test_the_divergence_is_that_of_two_normals() -> None:
    part, features = bottleneck(), torch.randn(3, 12)
    with torch.no_grad():
        part(features)
        hidden = part.encoder(features).tanh()
        deviation = (part.log_variance(hidden) / 2).exp()
        normal = torch.distributions.Normal(part.mean(hidden), deviation)
        standard = torch.distributions.Normal(torch.zeros(5), torch.ones(5))
        apart = torch.distributions.kl_divergence(normal, standard).sum(1).mean()
    torch.testing.assert_close(torch.as_tensor(divergences(part)), 0.003 * apart)
    assert divergences(part) == 0  # of each pass once


@pytest.mark.parametrize("factor", [1.0, -0.25])
def test_the_draw_is_read_off_the_update_of_one_example(factor: float) -> None:
    network = PrecodeLeNet((1, 28, 28), 10)
    network.initialise(torch.Generator().manual_seed(0))
    part, drawn = network.bottleneck, torch.randn(256, generator=torch.Generator().manual_seed(1))
    part.draw = drawn
    loss = F.cross_entropy(network(torch.rand(1, 1, 28, 28)), torch.tensor([3]))
    loss = loss + divergences(network)
    names = [name for name, _ in part.named_parameters()]
    slopes = torch.autograd.grad(loss, list(part.parameters()))
    gradient = {name: factor * slope for name, slope in zip(names, slopes, strict=True)}
    read = part.read(gradient)
    assert read is not None
    torch.testing.assert_close(read, drawn, atol=1e-3, rtol=1e-3)
    assert part.read({"mean.weight": gradient["mean.weight"]}) is None


def test_the_classifier_is_the_last_layer() -> None:
    assert find_head(PrecodeLeNet((1, 28, 28), 10)).weight == "fc.weight"


def test_nothing_is_random_for_who_reads_the_draw(
    victim: Callable[..., tuple[Task, Observation]], pictures: Callable[..., Batch]
) -> None:
    batch = pictures(1, 0)
    task, seen = victim(batch, model="lenet-precode")
    model = replay(seen, task, torch.device("cpu"))
    loss = matching_loss(model, seen, adaptive=False)
    assert float(loss(batch.inputs, batch.labels, seen.received).detach()) < 1e-6
    for part in model.network.modules():
        if isinstance(part, VariationalBottleneck):
            part.draw = torch.zeros(256)
    assert float(loss(batch.inputs, batch.labels, seen.received).detach()) > 1e-3
