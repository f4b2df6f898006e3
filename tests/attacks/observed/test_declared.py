"""What declared defenses change, and how much that is worth."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from attacks.observed.declared import declared
from attacks.observed.factored import Factored
from attacks.observed.replay import replay
from attacks.texts.low_rank import shrink
from attacks.texts.matching import TextObjective, adapted
from attacks.texts.text_group import denoised
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Kind, Observation
from fedsim.types import Tensors
from tests.attacks.texts.cases import (
    DEFENSE,
    LAMP_COS,
    LAMP_L2L1,
    SINGLE,
    attack,
    look,
    low,
    mean,
    normal,
    quick,
    several,
)
from tests.attacks.victims import Victim

SIGN: DEFENSE = {"name": "sign"}
PRUNE: DEFENSE = {"name": "prune", "fraction": 0.95}
NOISE: DEFENSE = {"name": "gaussian_noise", "std": 1e-4}
CLIP: DEFENSE = {"name": "clip", "norm": 1e-3}
DP: DEFENSE = {"name": "dp_client", "clip": 1.0, "noise_multiplier": 1e-3}
INT8: DEFENSE = {"name": "quantize", "kind": "int8"}
FP16: DEFENSE = {"name": "quantize", "kind": "fp16"}
QSGD: DEFENSE = {"name": "quantize", "kind": "qsgd"}
SERVER: DEFENSE = {"name": "dp_server", "clip": 1.0, "noise_multiplier": 1.0}


@pytest.fixture(scope="module")
def bert() -> Victim:
    return quick()


@pytest.fixture(scope="module")
def plain(bert: Victim) -> Observation:
    return look(bert, [0])[0]


def told(seen: Observation, *chain: DEFENSE, count: int = 1) -> Observation:
    """The same update where this chain was declared."""
    return replace(seen, knowledge=Knowledge(num_examples=count, defense=chain))


def test_an_unknown_defense_is_no_empty_one(bert: Victim, plain: Observation) -> None:
    assert declared(told(plain)).names == ()
    unknown = replace(plain, knowledge=Knowledge(num_examples=1))
    reason = re.escape(
        "an adaptive attack needs the client's defense, which the server "
        "does not know. Grant server_knows.defense. Without it, set adaptive = false."
    )
    with pytest.raises(CannotAttack, match=reason):
        attack(bert, replace(LAMP_COS, adaptive=True), [unknown])
    assert len(attack(bert, replace(LAMP_COS, steps=1), [unknown])) == 1


def test_the_distance_fits_the_defense(plain: Observation) -> None:
    for own in (TextObjective(), TextObjective("l2l1")):
        assert adapted(own, told(plain)) == own
        assert adapted(own, told(plain, NOISE)) == own
        assert adapted(own, told(plain, PRUNE)) == replace(own, form="support")
        # Differences of gradients and of +-1 say nothing.
        assert adapted(own, told(plain, SIGN)) == replace(own, distance="cosine")
        assert adapted(own, told(plain, SIGN, count=2)) == replace(own, form="tanh")
        # What was pruned before has no sign.
        assert adapted(own, told(plain, PRUNE, SIGN)) == replace(own, distance="cosine")
        for same in (INT8, QSGD, SERVER):
            assert adapted(own, told(plain, same)) == own
        # The length of what was clipped says nothing.
        for cut in (CLIP, DP):
            assert adapted(own, told(plain, cut)) == replace(own, distance="cosine")


def error(values: Tensors, truth: Tensors, names: frozenset[str]) -> float:
    squares = [float((values[name] - truth[name]).square().sum()) for name in names]
    return math.sqrt(sum(squares))


def test_noise_is_taken_off_weights_alone(bert: Victim, plain: Observation) -> None:
    weights = Factored(replay(plain, bert.task, torch.device("cpu"))).weights
    assert weights
    noisy, _ = look(bert, [0], NOISE)
    before, truth = noisy.update(), plain.update()
    after = denoised(before, weights, noisy, 7)
    large = frozenset(name for name in weights if min(before[name].shape) >= 32)
    assert large
    assert error(after, truth, large) < 0.6 * error(before, truth, large)
    for name in before.keys() - large:
        assert torch.equal(after[name], before[name])
    assert after.keys() == before.keys()


@pytest.mark.parametrize("defense", [INT8, QSGD, DP])
def test_rounding_and_noise_are_taken_off(
    defense: DEFENSE, bert: Victim, plain: Observation
) -> None:
    weights = Factored(replay(plain, bert.task, torch.device("cpu"))).weights
    noisy, _ = look(bert, [0], defense)
    before, truth = noisy.update(), plain.update()
    size = math.sqrt(sum(float(value.square().sum()) for value in truth.values()))
    scale = min(1.0, 1.0 / size) if defense is DP else 1.0
    clean = {name: scale * value for name, value in truth.items()}
    after = denoised(before, weights, noisy, 7)
    large = frozenset(name for name in weights if min(before[name].shape) >= 32)
    assert error(after, clean, large) < 0.8 * error(before, clean, large)


@pytest.mark.parametrize("rounding", [INT8, FP16, QSGD])
def test_what_was_pruned_stays_pruned(rounding: DEFENSE, bert: Victim, plain: Observation) -> None:
    weights = Factored(replay(plain, bert.task, torch.device("cpu"))).weights
    seen, _ = look(bert, [0], {"name": "prune", "fraction": 0.5}, rounding)
    before, truth = seen.update(), plain.update()
    after = denoised(before, weights, seen, 7)
    for name in weights:
        assert torch.equal(after[name] != 0, before[name] != 0)
    kept = {name: value.where(before[name] != 0, 0) for name, value in truth.items()}
    assert error(after, kept, weights) < error(before, kept, weights)


def made(*chain: DEFENSE, rank: int, noise: float = 0.0, **facts: object) -> Observation:
    """The update of one weight of this rank, its coordinates about 1, with noise on it."""
    value = low(80, 60, rank) / rank**0.5 + noise * normal(80, 60, seed=5)
    known = Knowledge.model_validate({"num_examples": 8, "defense": chain, **facts})
    kind: Kind = "weights" if known.local_steps else "gradient"
    sent = torch.zeros(80, 60, dtype=torch.float64)
    return Observation(
        CaptureKey(round=1, client=0),
        {"w": sent},
        {"w": sent - value if known.local_steps else value},
        kind,
        known,
    )


def changed(seen: Observation, rank: int) -> float:
    """How much is taken off, as a share of the norm."""
    value = seen.update()["w"]
    clean = denoised({"w": value}, frozenset({"w"}), seen, rank)["w"]
    return float((clean - value).norm() / value.norm())


@pytest.mark.parametrize("defense", [FP16, INT8, NOISE, {**DP, "noise_multiplier": 1e-5}])
def test_no_more_is_taken_off_than_was_declared(defense: DEFENSE) -> None:
    """Half of the singular values of a weight of full rank look like noise."""
    seen = made(defense, rank=60)
    value = seen.update()["w"]
    assert (shrink(value) - value).norm() > 0.3 * value.norm()
    assert changed(seen, 60) < 0.01


def test_noise_of_unknown_size_is_left_on_weights_of_high_rank() -> None:
    for rank in (30, 31):
        noisy = made(QSGD, rank=3, noise=0.1)
        assert (changed(noisy, rank) > 0.05) == (rank == 30)


def test_noise_of_local_steps_is_known() -> None:
    """``sigma C / B`` in each of four steps of SGD."""
    dp_sgd = {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 0.8}
    steps: dict[str, Any] = {"batch_size": 4, "local_steps": 4, "optimizer": "sgd"}
    steps["learning_rate"] = 0.25
    noise = 0.25 * 2 * 0.8 / 4
    assert changed(made(dp_sgd, rank=3, noise=noise, **steps), 60) > 0.05
    full = changed(made(dp_sgd, rank=60, **steps), 60)
    assert 0 < full < changed(made(dp_sgd, rank=60, **{**steps, "local_steps": 16}), 60)
    for fact, value in (("optimizer", "adam"), ("batch_size", None)):
        steps[fact] = value
        assert changed(made(dp_sgd, rank=3, noise=noise, **steps), 60) == 0
        steps["optimizer"] = "sgd"


def test_scale_and_noise_go_together() -> None:
    seen = made({"name": "gaussian_noise", "std": 0.1}, rank=60)
    value = seen.update()["w"]
    filtered = denoised({"w": value}, frozenset({"w"}), seen, 60)["w"]
    scaled = denoised({"w": 4 * value}, frozenset({"w"}), seen, 60, 0.25)["w"]
    torch.testing.assert_close(scaled, 4 * filtered)


def test_what_is_not_noisy_stays(bert: Victim, plain: Observation) -> None:
    weights = Factored(replay(plain, bert.task, torch.device("cpu"))).weights
    update = plain.update()
    for chain in ((), (SIGN,), (PRUNE,), (CLIP,), (SERVER,)):
        assert denoised(update, weights, told(plain, *chain), 7) is update


def test_an_undefended_update_is_attacked_alike(bert: Victim) -> None:
    seen, _ = several(bert, SINGLE[:2])
    search = replace(LAMP_COS, steps=3)
    plain = attack(bert, search, seen)
    aware = attack(bert, replace(search, adaptive=True), seen)
    assert [guess.objective for guess in plain] == [guess.objective for guess in aware]


@pytest.mark.slow
def test_pruned_updates_give_more_to_those_who_know(bert: Victim) -> None:
    seen, truths = several(bert, SINGLE[:2], PRUNE)
    aware = mean(attack(bert, replace(LAMP_COS, adaptive=True), seen), truths)
    assert aware > 0.4
    assert aware > mean(attack(bert, LAMP_COS, seen), truths) + 0.15


@pytest.mark.slow
def test_signs_are_read(bert: Victim) -> None:
    seen, truths = several(bert, SINGLE[:2], SIGN)
    assert mean(attack(bert, replace(LAMP_COS, adaptive=True), seen), truths) > 0.25


@pytest.mark.slow
def test_signs_of_one_sentence_are_no_differences(bert: Victim) -> None:
    seen, truths = several(bert, SINGLE[:3], SIGN)
    aware = mean(attack(bert, replace(LAMP_L2L1, adaptive=True), seen), truths)
    assert aware > mean(attack(bert, LAMP_L2L1, seen), truths) + 0.15


def test_noise_that_covers_everything_is_matched_as_it_is(bert: Victim) -> None:
    seen, _ = several(bert, SINGLE[:1], {"name": "gaussian_noise", "std": 100.0})
    search = replace(
        LAMP_COS, adaptive=True, steps=3, layers=("layer.0.attention.self.query.weight",)
    )
    (guess,) = attack(bert, search, seen)
    assert guess.objective is not None
    assert torch.tensor(guess.objective).isfinite()


@pytest.mark.slow
def test_layers_that_lost_everything_are_left_out(bert: Victim) -> None:
    harsh: DEFENSE = {"name": "prune", "fraction": 0.999}
    seen, _ = several(bert, SINGLE[:2], harsh)
    assert any(not bool(value.any()) for value in seen[0].received.values())
    for adaptive in (False, True):
        for guess in attack(bert, replace(LAMP_COS, adaptive=adaptive, steps=12), seen):
            assert guess.steps == 12
            assert guess.objective is not None
            assert torch.tensor(guess.objective).isfinite()
