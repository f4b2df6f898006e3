import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fedsim.config import build as building
from fedsim.config.build import build, options_of
from fedsim.defenses import DEFENSES, build_chain
from fedsim.defenses.base import Defense, NoDefense
from fedsim.defenses.chain import Chain
from fedsim.defenses.clip import Clip
from fedsim.defenses.dp_client import DpClient, DpServer
from fedsim.defenses.dp_sgd import DpSgd
from fedsim.defenses.freeze_embeddings import FreezeEmbeddings
from fedsim.defenses.gaussian_noise import GaussianNoise
from fedsim.defenses.prune import Prune
from fedsim.defenses.quantize import Quantize
from fedsim.defenses.sign import Sign
from fedsim.errors import ConfigError
from fedsim.types import Batch, Tensors

# One row for each defense: the table of an experiment, and what is built from it.
TABLE: dict[str, tuple[dict[str, object], Defense]] = {
    "none": ({}, NoDefense()),
    "gaussian_noise": ({"std": 0.01}, GaussianNoise(std=0.01, stage="client")),
    "dp_sgd": (
        {"clip": 0.5, "epsilon": 8},
        DpSgd(clip=0.5, noise_multiplier=None, epsilon=8.0, delta=1e-5),
    ),
    "clip": ({"norm": 2}, Clip(norm=2.0)),
    "dp_client": (
        {"clip": 0.5, "epsilon": 8},
        DpClient(clip=0.5, noise_multiplier=None, epsilon=8.0, delta=1e-5, adjacency="replace"),
    ),
    "dp_server": ({"clip": 1, "noise_multiplier": 2}, DpServer(clip=1.0, noise_multiplier=2.0)),
    "quantize": (
        {"kind": "qsgd", "levels": 1},
        Quantize(kind="qsgd", levels=1, bucket=None, stage="client"),
    ),
    "prune": ({"fraction": 0.99, "stage": "sample"}, Prune(fraction=0.99, stage="sample")),
    "sign": ({"scale": "mean"}, Sign(stage="client", scale="mean", tau=None)),
    "freeze_embeddings": ({"position": True}, FreezeEmbeddings(word=True, position=True)),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_defense_is_built_from_its_table_and_gives_its_options_back(name: str) -> None:
    options, expected = TABLE[name]
    built = build(DEFENSES, {"name": name, **options}, "defenses[0]")
    assert built == expected
    assert type(built)(**options_of(built)) == built
    assert pickle.loads(pickle.dumps(built)) == built
    assert hash(built) == hash(expected)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "gaussian_noise"}, "defenses[0].std: is missing. Add it."),
        (
            {"name": "gaussian_noise", "std": -1},
            "defenses[0].std: -1 does not fit. Write a number greater than or equal to 0.",
        ),
        (
            {"name": "gaussian_noise", "std": float("inf")},
            "defenses[0].std: Infinity does not fit. Write a finite number.",
        ),
        (
            {"name": "gaussian_noise", "stdd": 1},
            "defenses[0].stdd: gaussian_noise has no such option. Did you mean 'std'?",
        ),
        (
            {"name": "dp_sgd", "clip": 0, "epsilon": 1},
            "defenses[0].clip: 0 does not fit. Write a number greater than 0.",
        ),
        (
            {"name": "dp_sgd", "clip": 1, "epsilon": 1, "delta": 1},
            "defenses[0].delta: 1 does not fit. Write a number less than 1.",
        ),
        (
            {"name": "dp_sgd", "clip": 1},
            "defenses[0]: noise_multiplier or epsilon determines the noise, but neither is "
            "given; set one of them.",
        ),
        (
            {"name": "dp_sgd", "clip": 1, "epsilon": 1, "noise_multiplier": 1},
            "defenses[0]: noise_multiplier or epsilon determines the noise, but both are given; "
            "set one of them.",
        ),
        (
            {"name": "dp_client", "clip": 1},
            "defenses[0]: noise_multiplier or epsilon determines the noise, but neither is "
            "given; set one of them.",
        ),
        (
            {"name": "clip", "norm": 0},
            "defenses[0].norm: 0 does not fit. Write a number greater than 0.",
        ),
        (
            {"name": "quantize", "kind": "int4"},
            "defenses[0].kind: \"int4\" does not fit. Write 'fp16', 'bf16', 'int8' or 'qsgd'.",
        ),
        (
            {"name": "quantize", "kind": "int8", "levels": 3},
            "defenses[0]: levels is 3, but int8 does not use it; leave levels out, or set kind "
            "to 'qsgd'.",
        ),
        (
            {"name": "prune", "fraction": 1},
            "defenses[0].fraction: 1 does not fit. Write a number less than 1.",
        ),
        (
            {"name": "prune", "fraction": 0.9, "scope": "layer"},
            "defenses[0].scope: \"layer\" does not fit. Write 'global' or 'tensor'.",
        ),
        (
            {"name": "sign", "tau": 0},
            "defenses[0].tau: 0 does not fit. Write a number greater than 0.",
        ),
        (
            {"name": "sign", "stage": "server"},
            "defenses[0].stage: \"server\" does not fit. Write 'sample' or 'client'.",
        ),
        (
            {"name": "freeze_embeddings", "word": False},
            "defenses[0]: word, position, head and bias are all false, so nothing is frozen; "
            "set one to true, or use none.",
        ),
    ],
)
def test_a_wrong_option_is_named(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_chain([table], "defenses")
    assert str(caught.value) == message


def test_ranges_hold_without_an_experiment_too() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        GaussianNoise(std=-1.0)
    with pytest.raises(ValueError, match="less than 1"):
        Prune(fraction=1.5)


def test_an_empty_chain_is_no_defense() -> None:
    for chain in (build_chain([], "defenses"), build_chain([{"name": "none"}], "defenses")):
        assert chain == Chain()
        assert (chain.name, chain.options_json, chain.per_example) == ("none", "[]", False)
        update = {"w": torch.ones(2)}
        assert chain.on_gradient(update, torch.Generator()) is update
        assert chain.on_update(update, torch.Generator()) is update
        assert chain.surrogate(update) is update


def test_name_and_options_of_a_chain_are_canonical_and_build_it_again() -> None:
    chain = build_chain(
        [
            {"name": "gaussian_noise", "std": 1},
            {"name": "none"},
            {"name": "prune", "fraction": 0.5},
        ],
        "defenses",
    )
    assert chain.name == "gaussian_noise+prune"
    assert chain.options_json == (
        '[{"name":"gaussian_noise","stage":"client","std":1.0},'
        '{"fraction":0.5,"keep":"largest","name":"prune","scope":"global","stage":"client"}]'
    )
    assert build_chain(json.loads(chain.options_json), "defenses") == chain
    assert build_chain(chain.tables, "defenses") == chain


def test_update_hooks_run_in_the_order_of_the_chain() -> None:
    update = {"w": torch.tensor([4.0, -3.0, 1.0, 0.5])}
    prune: dict[str, object] = {"name": "prune", "fraction": 0.5}
    scaled: dict[str, object] = {"name": "sign", "scale": "mean"}
    rng = torch.Generator()
    first = build_chain([prune, scaled], "d").on_update(update, rng)["w"]
    assert first.tolist() == [1.75, -1.75, 0.0, 0.0]
    second = build_chain([scaled, prune], "d").on_update(update, rng)["w"]
    assert second.tolist() == [2.125, -2.125, 0.0, 0.0]
    soft = build_chain([prune, {"name": "sign", "tau": 2.0}], "d").surrogate(update)["w"]
    torch.testing.assert_close(soft, torch.tensor([2.0, -1.5, 0.0, 0.0]).tanh())


def test_sample_defenses_run_per_example_and_before_client_ones() -> None:
    chain = build_chain(
        [{"name": "sign", "stage": "sample"}, {"name": "prune", "fraction": 0.5}], "defenses"
    )
    assert chain.per_example
    rng = torch.Generator()
    examples = [{"w": torch.tensor([3.0, -1.0])}, {"w": torch.tensor([0.1, 5.0])}]
    signs = [chain.on_gradient(example, rng)["w"] for example in examples]
    assert [s.tolist() for s in signs] == [[1.0, -1.0], [1.0, 1.0]]
    sent = chain.on_update({"w": torch.stack(signs).mean(0)}, rng)["w"]
    assert sent.tolist() == [1.0, 0.0]


def test_a_sample_defense_after_a_client_one_is_refused() -> None:
    tables: list[dict[str, object]] = [
        {"name": "sign"},
        {"name": "freeze_embeddings"},
        {**TABLE["prune"][0], "name": "prune"},
    ]
    with pytest.raises(ConfigError) as caught:
        build_chain(tables, "defenses[1].chain")
    assert str(caught.value) == (
        "defenses[1].chain[2]: 'prune' changes single gradients and has to come before 'sign', "
        "which changes the update. List it first, or set its stage to 'client'."
    )


def test_error_feedback_stands_before_all_that_changes_the_update() -> None:
    own: dict[str, object] = {"name": "error_feedback"}
    pruned: dict[str, object] = {"name": "prune", "fraction": 0.5}
    assert build_chain([{"name": "freeze_embeddings"}, own, pruned], "defenses").remembers
    with pytest.raises(ConfigError, match=r"has to come before 'prune', which changes the update"):
        build_chain([pruned, own], "defenses")
    private: dict[str, object] = {"name": "dp_client", "clip": 1.0, "noise_multiplier": 1.0}
    with pytest.raises(ConfigError, match="epsilon does not count what error_feedback carries"):
        build_chain([own, private], "defenses")


def test_a_sample_defense_after_the_clipping_is_refused_and_one_before_it_is_not() -> None:
    noisy: dict[str, object] = {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}
    signs: dict[str, object] = {"name": "sign", "stage": "sample"}
    with pytest.raises(ConfigError) as caught:
        build_chain([noisy, signs], "defenses")
    assert str(caught.value) == (
        "defenses[1]: 'sign' changes single gradients and has to come before 'dp_sgd', which "
        "changes their sum. List it first, or set its stage to 'client'."
    )
    assert build_chain([signs, noisy], "defenses").changes_sum
    assert build_chain([noisy, {"name": "sign"}], "defenses").changes_sum
    with pytest.raises(ConfigError, match="'dp_sgd' changes single gradients"):
        build_chain([noisy, noisy], "defenses")


def test_epsilons_of_two_units_are_not_mixed() -> None:
    example: dict[str, object] = {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}
    update: dict[str, object] = {"name": "dp_client", "clip": 1.0, "noise_multiplier": 1.0}
    with pytest.raises(ConfigError) as caught:
        build_chain([example, {"name": "sign"}, update], "defenses")
    assert str(caught.value) == (
        "defenses[2]: the epsilon of 'dp_client' protects one update of a client, but that of an "
        "earlier defense protects one example. Leave one of them out, or replace it by "
        "gaussian_noise."
    )
    assert build_chain([update, update], "defenses").unit == "update"
    assert build_chain([{"name": "sign"}], "defenses").unit is None


@dataclass(frozen=True)
class Darken(Defense):
    """Touches the model, the batch and the update, as a defense of somebody else may."""

    factor: float = 0.5

    def on_model(self, model: nn.Module) -> None:
        model.train()

    def on_batch(self, batch: Batch, model: nn.Module, rng: torch.Generator) -> Batch:
        return Batch(batch.inputs * self.factor, batch.labels)

    def on_update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value * self.factor for name, value in update.items()}


@pytest.fixture
def darken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "darken"
        load: Callable[[], type[Defense]] = staticmethod(lambda: Darken)

    def points(group: str, path: tuple[str, ...]) -> list[Point]:
        return [Point()] if group == "fedsim.defenses" else []

    monkeypatch.setattr(building, "_installed", points)


@pytest.mark.usefixtures("darken")
def test_a_defense_of_another_package_joins_a_chain() -> None:
    chain = build_chain([{"name": "darken"}, {"name": "darken", "factor": 0.1}], "defenses")
    model = nn.Linear(2, 2).eval()
    chain.on_model(model)
    assert model.training
    rng = torch.Generator()
    batch = chain.on_batch(Batch(torch.ones(1, 2), torch.zeros(1)), model, rng)
    torch.testing.assert_close(batch.inputs, torch.full((1, 2), 0.05))
    torch.testing.assert_close(
        chain.on_update({"w": torch.ones(1)}, rng)["w"], torch.tensor([0.05])
    )
    assert not chain.per_example
    assert chain.name == "darken+darken"
    with pytest.raises(ConfigError, match="'sign' changes single gradients"):
        build_chain([{"name": "darken"}, {"name": "sign", "stage": "sample"}], "defenses")
