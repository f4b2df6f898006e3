"""What declared defenses change, and how much that is worth."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from attacks.adaptive import adapted, declared, denoised
from attacks.replay import replay
from attacks.texts.factored import Factored
from attacks.texts.matching import Objective
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.types import Tensors
from tests.attacks.test_embedding_rows import Victim
from tests.attacks.test_text_matching import (
    DEFENSE,
    LAMP_COS,
    SINGLE,
    attack,
    look,
    mean,
    quick,
    several,
)

SIGN: DEFENSE = {"name": "sign"}
PRUNE: DEFENSE = {"name": "prune", "fraction": 0.95}
NOISE: DEFENSE = {"name": "gaussian_noise", "std": 1e-4}
CLIP: DEFENSE = {"name": "clip", "norm": 1e-3}
DP: DEFENSE = {"name": "dp_client", "clip": 1.0, "noise_multiplier": 1e-3}
INT8: DEFENSE = {"name": "quantize", "kind": "int8"}
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
        "round-0001-client-0000: an adaptive attack needs the client's defense, which the server "
        "does not know. Grant server_knows.defense, or set adaptive = false."
    )
    with pytest.raises(CannotAttack, match=reason):
        attack(bert, replace(LAMP_COS, adaptive=True), [unknown])
    assert len(attack(bert, replace(LAMP_COS, steps=1), [unknown])) == 1


def test_the_distance_fits_the_defense(plain: Observation) -> None:
    for own in (Objective(), Objective("l2l1", alpha_l1=0.5)):
        assert adapted(own, told(plain)) == own
        assert adapted(own, told(plain, NOISE)) == own
        assert adapted(own, told(plain, PRUNE)) == replace(own, form="support")
        assert adapted(own, told(plain, SIGN)) == own
        assert adapted(own, told(plain, SIGN, count=2)) == replace(own, form="tanh")
        # What was pruned before has no sign.
        assert adapted(own, told(plain, PRUNE, SIGN)) == own
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
    after = denoised(before, weights, noisy)
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
    after = denoised(before, weights, noisy)
    large = frozenset(name for name in weights if min(before[name].shape) >= 32)
    assert error(after, clean, large) < 0.8 * error(before, clean, large)


def test_what_is_not_noisy_stays(bert: Victim, plain: Observation) -> None:
    weights = Factored(replay(plain, bert.task, torch.device("cpu"))).weights
    update = plain.update()
    for chain in ((), (SIGN,), (PRUNE,), (CLIP,), (SERVER,)):
        assert denoised(update, weights, told(plain, *chain)) is update


def test_an_undefended_update_is_attacked_alike(bert: Victim) -> None:
    seen, _ = several(bert, SINGLE[:2])
    search = replace(LAMP_COS, steps=3)
    plain = attack(bert, search, seen)
    aware = attack(bert, replace(search, adaptive=True), seen)
    assert [guess.objective for guess in plain] == [guess.objective for guess in aware]


def test_pruned_updates_give_more_to_those_who_know(bert: Victim) -> None:
    seen, truths = several(bert, SINGLE[:3], PRUNE)
    aware = mean(attack(bert, replace(LAMP_COS, adaptive=True), seen), truths)
    assert aware > 0.4
    assert aware > mean(attack(bert, LAMP_COS, seen), truths) + 0.15


def test_signs_are_read(bert: Victim) -> None:
    seen, truths = several(bert, SINGLE[:2], SIGN)
    assert mean(attack(bert, replace(LAMP_COS, adaptive=True), seen), truths) > 0.25


def test_layers_that_lost_everything_are_left_out(bert: Victim) -> None:
    harsh: DEFENSE = {"name": "prune", "fraction": 0.999}
    seen, _ = several(bert, SINGLE[:2], harsh)
    assert any(not bool(value.any()) for value in seen[0].received.values())
    for adaptive in (False, True):
        for guess in attack(bert, replace(LAMP_COS, adaptive=adaptive, steps=12), seen):
            assert guess.steps == 12
            assert guess.objective is not None
            assert torch.tensor(guess.objective).isfinite()
