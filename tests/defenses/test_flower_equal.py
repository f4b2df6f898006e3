"""Clipping and local noise beside the mods that Flower ships, on the same reply."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg

from fedsim.defenses.clip import Clip
from fedsim.defenses.local_dp import LocalDp
from fedsim.types import Tensors

CLIP = 0.75

pytestmark = pytest.mark.usefixtures("flower_task")


def weights(seed: int) -> Tensors:
    rng = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(40, 30, generator=rng), "b": torch.randn(7, generator=rng)}


def through(mod: Callable[..., Message], sent: Tensors, trained: Tensors) -> Tensors:
    """What the server receives of ``trained`` through a mod."""
    config = ConfigRecord({"clipping_norm": CLIP})
    content = RecordDict({"arrays": ArrayRecord(sent), "config": config})
    message = Message(content, dst_node_id=1, message_type="train")
    context = Context(1, 1, {}, RecordDict(), {})

    def client(own: Message, _: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1})
        reply = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
        return Message(reply, reply_to=own)

    out = mod(message, context, client)
    (arrays,) = out.content.array_records.values()
    return dict(arrays.to_torch_state_dict())


@pytest.mark.parametrize("scale", [1.0, 1e-3])
@pytest.mark.parametrize("mod", [fixedclipping_mod, adaptiveclipping_mod])
def test_clip_is_that_of_both_clipping_mods(mod: Callable[..., Message], scale: float) -> None:
    """To float32 rounding: Flower sums squares in float32, ``clip`` in float64."""
    sent, step = weights(0), {name: scale * value for name, value in weights(1).items()}
    trained = {name: sent[name] + step[name] for name in sent}
    theirs = through(mod, sent, trained)
    update = {name: sent[name] - trained[name] for name in sent}
    ours = Clip(norm=CLIP).on_update(update, torch.Generator())
    for name in sent:
        torch.testing.assert_close(sent[name] - ours[name], theirs[name], atol=1e-6, rtol=0)


def test_local_dp_is_the_mod_but_for_the_generator() -> None:
    """With Flower's own draws in place of the client's, the results are equal to rounding."""
    sent, step = weights(0), weights(1)
    trained = {name: sent[name] + step[name] for name in sent}
    options = {"clipping_norm": CLIP, "sensitivity": 1.5, "epsilon": 20.0, "delta": 1e-5}
    np.random.seed(7)
    theirs = through(LocalDpMod(**options), sent, trained)
    np.random.seed(7)
    defense = LocalDp(**options)
    clipped = defense.surrogate({name: sent[name] - trained[name] for name in sent})
    for name in sent:
        noise = torch.from_numpy(np.random.normal(0, defense.std, sent[name].shape)).float()
        ours = sent[name] - clipped[name] + noise
        torch.testing.assert_close(ours, theirs[name], atol=2e-6, rtol=0)


@pytest.mark.parametrize("clipped", [0.0, 1.0])
def test_flowers_norm_moves_away_from_the_quantile(clipped: float) -> None:
    """The paper's share is of updates that were not clipped; Flower 1.41 puts the others there."""
    theirs = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(), 0.0, num_sampled_clients=20, initial_clipping_norm=1.0
    )
    theirs._geometric_update(clipped)
    paper = np.exp(-0.2 * ((1 - clipped) - 0.5))
    assert theirs.clipping_norm == pytest.approx(1 / paper)
