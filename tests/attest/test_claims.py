"""Claims held against replies: honest ones stand, and planted liars are refuted by a number."""

from typing import Any

import pytest
import torch

from benchmarks.attest.clients import reply
from experiments.attest.claims import Declared
from experiments.attest.findings import Part
from experiments.attest.noise import at_most
from experiments.attest.reply import attest
from experiments.attest.rounds import Federation, attest_all
from experiments.captures.update import Update
from experiments.wording.epsilons import Epsilons
from fedsim.errors import ConfigError

FLIP = "LocalDpMod(1.0, 1e-4, 10.0, 1e-5)"
SOUND = "local_dp clip=1 epsilon=10 delta=1e-5"
LOCAL: dict[str, Any] = {
    **{"name": "local_dp", "clipping_norm": 1.0, "sensitivity": 2.0},
    **{"epsilon": 10.0, "delta": 1e-5},
}
SIGMA = 0.969
CLIP: dict[str, Any] = {"name": "clip", "norm": 1.0}
PRUNED: tuple[dict[str, Any], ...] = (CLIP, {"name": "prune", "fraction": 0.9})
CLOSE = [("lenet", 1, "adam"), ("tiny-bert", 0, "sgd"), ("tiny-gpt2", 1, "adam")]


def held(claim: str, *victims: Update) -> Federation:
    return attest_all(victims, Declared.parse(claim))


def changed(victim: Update, **tensors: torch.Tensor) -> Update:
    victim.observation.received.update(tensors)
    return victim


def test_flips_default_is_refuted_by_its_own_numbers_in_one_line() -> None:
    shipped = LOCAL | {"sensitivity": 1e-4}
    seen = held(FLIP, reply("lenet", 1, shipped))
    assert seen.refuted
    assert seen.held[1].word == "consistent"  # the mod ran
    assert str(seen.held[0]) == (
        "the claim itself: refuted: sensitivity 0.0001 is 5e-05 of what two updates of clip 1 "
        "differ by; sigma 4.84e-05 at clip 1 is epsilon 2.13e+08 (add or remove one) and 8.52e+08 "
        "(replace one) at delta 1e-05, no sampling, of one run; claimed 10 a message."
    )


@pytest.mark.some(2)
@pytest.mark.parametrize("model", ["lenet", "tiny-bert"])
def test_an_honest_client_is_consistent(model: str) -> None:
    seen = held(SOUND, *(reply(model, client, LOCAL) for client in range(3)))
    assert [each.word for each in seen.held] == ["consistent"] * 4
    assert not seen.refuted


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("claim", "table"),
    [
        ("opacus noise_multiplier=1 max_grad_norm=1", {"clip": 1.0, "noise_multiplier": 1.0}),
        ("dp_sgd clip=1 noise_multiplier=2", {"clip": 1.0, "noise_multiplier": 2.0}),
    ],
)
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_honest_steps_of_dp_sgd_are_consistent(
    claim: str, table: dict[str, Any], steps: int
) -> None:
    victim = reply("lenet", 2, {"name": "dp_sgd", **table}, steps=steps)
    assert Declared.parse(claim).held(victim, attest(victim)).word == "consistent"


def test_a_mod_that_did_not_run_is_refuted() -> None:
    seen = held(SOUND, reply("lenet", 1))
    assert seen.refuted
    assert "can carry" in str(seen.held[1])


def test_noise_on_some_tensors_is_refuted() -> None:
    victim, other = reply("lenet", 1, LOCAL), reply("lenet", 1)
    seen = held(
        SOUND, changed(victim, **{"body.0.weight": other.observation.received["body.0.weight"]})
    )
    assert seen.refuted
    assert "body.0.weight" in str(seen)


def test_clipping_after_the_noise_is_refuted() -> None:
    victim = reply("lenet", 1, LOCAL)
    norm = sum(float(v.square().sum()) for v in victim.observation.received.values()) ** 0.5
    cut = {name: value / norm for name, value in victim.observation.received.items()}
    assert held(SOUND, changed(victim, **cut)).refuted


def test_the_same_noise_in_two_rounds_is_refuted() -> None:
    first, second = (reply("lenet", 1, LOCAL) for _ in range(2))
    plain = reply("lenet", 2).observation.received
    own = reply("lenet", 1).observation.received
    moved = {k: v + 0.1 * (plain[k] - own[k]) for k, v in second.observation.received.items()}
    object.__setattr__(
        second.observation, "key", second.observation.key.model_copy(update={"round": 2})
    )
    seen = held(SOUND, first, changed(second, **moved))
    assert seen.refuted
    assert "is that of round-0001" in str(seen)


def test_too_long_an_update_is_refuted() -> None:
    assert held("clip norm=0.1", reply("lenet", 1)).refuted
    assert not held("clip norm=0.1", reply("lenet", 1, {"name": "clip", "norm": 0.1})).refuted


def test_four_times_the_norm_shows_under_the_usual_noise_of_32_examples() -> None:
    text = "opacus noise_multiplier=1 max_grad_norm=1"
    tables = [{"name": "dp_sgd", "clip": c, "noise_multiplier": 1 / c} for c in (1.0, 4.0)]
    words = [held(text, reply("lenet", 0, table, count=32)).held[1].word for table in tables]
    assert words == ["consistent", "refuted"]


def test_a_clipping_norm_is_read_off_several_replies() -> None:
    victims = [reply("lenet", client, {"name": "clip", "norm": 0.1}) for client in range(4)]
    seen = attest_all(victims)
    assert seen.clip.value == pytest.approx(0.1, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "steps", "optimizer"), CLOSE)
def test_norms_that_lie_close_and_those_of_steps_of_adam_are_no_clipping(
    model: str, steps: int, optimizer: str
) -> None:
    clients = range(100, 124)
    victims = [reply(model, each, steps=steps, optimizer=optimizer) for each in clients]
    assert attest_all(victims).clip.state == "open"


LATER: dict[str, tuple[Part, dict[str, Any]]] = {
    "sign": ("signs", {"name": "sign"}),
    "prune keep=0.1": ("sparsity", {"name": "prune", "fraction": 0.9}),
}


@pytest.mark.some(7)
@pytest.mark.parametrize("model", ["lenet", "mlp", "resnet20", "tiny-bert"])
@pytest.mark.parametrize("client", [0, 1])
@pytest.mark.parametrize("later", LATER)
def test_what_comes_after_the_noise_makes_no_liar(model: str, client: int, later: str) -> None:
    part, table = LATER[later]
    victim, liar = (reply(model, client, each, table) for each in (LOCAL, CLIP))
    shown = attest(victim)
    alone, chain = (Declared.parse(text) for text in (SOUND, f"{SOUND} + {later}"))
    for claim, reason in ((alone, shown[part].text), (chain, f"before {table['name']}")):
        answer = claim.held(victim, shown)
        assert answer.word == "not told"
        assert any(reason in each for each in answer.reasons)
        # A row of zeros contradicts noise before signs, too.
        words = {"refuted", "not told"} if part == "signs" else {"refuted"}
        assert claim.held(liar, attest(liar)).word in words


def test_parts_of_a_claim_are_held_against_what_follows_them() -> None:
    rounded = {"name": "quantize", "kind": "int8"}
    victim = reply("lenet", 1, LOCAL, rounded)
    for text in (SOUND, f"{SOUND} + quantize kind=int8"):
        assert held(text, victim).held[1].word == "consistent"
    assert held(f"{SOUND} + prune fraction=0.9", victim).refuted
    assert held("clip norm=0.1 + prune keep=0.1", reply("lenet", 1, *PRUNED)).refuted
    coarse = {"name": "quantize", "kind": "qsgd", "levels": 1}  # makes what it keeps longer
    assert not held(SOUND, reply("lenet", 1, LOCAL, coarse)).refuted


def test_pruned_noise_of_two_rounds_is_no_copy() -> None:
    first, second = (reply("lenet", client, LOCAL, PRUNED[1], round_=2) for client in (1, 2))
    assert not held(SOUND, first, second).refuted


def test_tensors_of_zeros_hold_no_noise() -> None:
    for least in (1000, 0):
        moved = {
            k: v * (v.numel() < least) for k, v in reply("mlp", 0).observation.received.items()
        }
        assert held(SOUND, changed(reply("mlp", 0), **moved)).refuted


def test_one_claim_about_another_defense_is_refuted() -> None:
    assert held("sign", reply("lenet", 1)).refuted
    assert not held("sign", reply("lenet", 1, {"name": "sign"})).refuted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spam", "is no defense"),
        ("clip norm=1 + spam", "is no defense"),
        ("local_dp 1", "has no name"),
        ("clip norm=x", "norm"),
    ],
)
def test_a_claim_that_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Declared.parse(text)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 5])
def test_uniform_noise_is_refuted_where_no_null_direction_has_samples(steps: int) -> None:
    rng, width = torch.Generator().manual_seed(0), SIGMA * 12**0.5
    bare = reply("mlp", 3, {"name": "clip", "norm": 1.0}, steps=steps)
    clean = bare.observation.received
    moved = {k: v + width * (torch.rand(v.shape, generator=rng) - 0.5) for k, v in clean.items()}
    uniform = changed(bare, **moved)
    assert held(SOUND, uniform).refuted
    assert not held(SOUND, reply("mlp", 3, LOCAL, steps=steps)).refuted


def test_mean_cosines_bound_gaussian_noise_on_any_signal() -> None:
    rng = torch.Generator().manual_seed(0)
    for draw in range(60):
        signal = torch.randn(5000, generator=rng) ** (1 + draw % 4) * 10 ** (draw % 5 - 3)
        assert at_most(signal + torch.randn(5000, generator=rng)) >= 1
    assert at_most(12**0.5 * (torch.rand(50_000, generator=rng) - 0.5)) < 0.8


def test_epsilon_is_that_of_dp_accounting_under_both_relations() -> None:
    library = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    for steps, rate, noise in ((20, 1.0, 2.4), (100, 0.1, 1.0)):
        spent = Epsilons.of(steps, rate, noise, 1e-5)
        sampled = library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise))
        event = library.SelfComposedDpEvent(sampled, steps)
        for relation, value in (
            (library.NeighboringRelation.ADD_OR_REMOVE_ONE, spent.add_or_remove),
            (library.NeighboringRelation.REPLACE_ONE, spent.replace),
        ):
            accountant = PLDAccountant(relation, 1e-3)
            accountant.compose(event)
            assert value == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-2)
    assert str(Epsilons.of(20, 1.0, 2.4, 1e-5)) == (
        "epsilon 9.17 (add or remove one) and 22.2 (replace one) at delta 1e-05, no sampling, of "
        "one run"
    )
