"""Clients that claim a defense and do otherwise."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from benchmarks.attest.clients import reply
from experiments.captures.update import Update
from fedsim.store.capture import Observation
from fedsim.types import Tensors

Client: TypeAlias = Callable[[int, int], Update]
"""(client, round) -> its reply."""
LOCAL: dict[str, Any] = {
    **{"name": "local_dp", "clipping_norm": 1.0, "sensitivity": 2.0},
    **{"epsilon": 10.0, "delta": 1e-5},
}
SOUND = "local_dp clip=1 epsilon=10 delta=1e-5"
OPACUS = "opacus noise_multiplier=1 max_grad_norm=1"
WEAK = "opacus noise_multiplier=0.01 max_grad_norm=1"
SIGMA = 0.969


def sgd(noise: float) -> dict[str, Any]:
    """DP-SGD with this noise multiplier."""
    return {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": noise}


def of(victim: Update, seen: Observation) -> Update:
    """The same client with another reply."""
    return replace(victim, reading=replace(victim.reading, observation=seen))


def changed(victim: Update, change: Callable[[str, Tensor], Tensor]) -> Update:
    """The reply with each tensor changed."""
    seen = victim.observation
    received = {name: change(name, value) for name, value in seen.received.items()}
    return of(victim, replace(seen, received=received))


def _clipped_after(client: int, round_: int) -> Update:
    noisy = reply("lenet", client, LOCAL, round_=round_)
    norm = sum(float(v.square().sum()) for v in noisy.observation.received.values()) ** 0.5
    return changed(noisy, lambda _, value: value / norm)


def _parts(client: int, round_: int, covered: Callable[[str], bool]) -> Update:
    """Noise on some tensors alone."""
    bare: Tensors = reply("lenet", client, {"name": "clip", "norm": 1.0}).observation.received
    noisy = reply("lenet", client, LOCAL, round_=round_)
    return changed(noisy, lambda name, value: value if covered(name) else bare[name])


def _repeated(client: int, round_: int) -> Update:
    """The same noise each round, on other gradients."""
    noisy = reply("lenet", client, LOCAL)  # of round 1
    own, other = (reply("lenet", n).observation.received for n in (client, client + round_))
    moved = changed(noisy, lambda name, value: value + 0.1 * (other[name] - own[name]))
    key = noisy.observation.key.model_copy(update={"round": round_})
    return of(moved, replace(moved.observation, key=key))


def _uniform(client: int, round_: int) -> Update:
    """Noise of the right variance that is no Gaussian."""
    rng = torch.Generator().manual_seed(1000 * client + round_)
    bare = reply("tiny-bert", client, {"name": "clip", "norm": 1.0}, round_=round_)
    width = SIGMA * 12**0.5
    return changed(bare, lambda _, v: v + width * (torch.rand(v.shape, generator=rng) - 0.5))


LIARS: Mapping[str, tuple[str, Client]] = {
    "never clips nor adds noise": (SOUND, lambda c, r: reply("lenet", c, round_=r)),
    "does once in ten rounds": (
        SOUND,
        lambda c, r: reply("lenet", c, *([LOCAL] if r == 1 else []), round_=r),
    ),
    "leaves out one round, the sixth": (
        SOUND,
        lambda c, r: reply("lenet", c, *([] if r == 6 else [LOCAL]), round_=r),
    ),
    "LocalDpMod with sensitivity 0": (
        SOUND,
        lambda c, r: reply("lenet", c, LOCAL | {"sensitivity": 0.0}, round_=r),
    ),
    "half of the noise": (
        SOUND,
        lambda c, r: reply("lenet", c, LOCAL | {"sensitivity": 1.0}, round_=r),
    ),
    "noise on the last layer alone": (
        SOUND,
        lambda c, r: _parts(c, r, lambda name: name.startswith("fc")),
    ),
    "no noise on biases": (SOUND, lambda c, r: _parts(c, r, lambda name: "bias" not in name)),
    "clips after the noise": (SOUND, _clipped_after),
    "the same noise each round": (SOUND, _repeated),
    "uniform noise": (SOUND, _uniform),
    "Opacus 806: no noise for an empty batch": (
        OPACUS,
        lambda c, r: changed(reply("lenet", c, round_=r), lambda _, v: torch.zeros_like(v)),
    ),
    "Opacus 807: noise that shrinks by a tenth a round": (
        OPACUS,
        lambda c, r: reply("lenet", c, sgd(0.9 ** (r - 1)), round_=r),
    ),
    "Opacus 808: clips to four times the norm": (
        WEAK,
        lambda c, r: reply("lenet", c, sgd(0.0025) | {"clip": 4.0}, round_=r),
    ),
    "Opacus 808, 32 examples under the usual noise": (
        OPACUS,
        lambda c, r: reply("lenet", c, sgd(0.25) | {"clip": 4.0}, round_=r, count=32),
    ),
}
"""What a client does -> what it claims, and its replies."""
