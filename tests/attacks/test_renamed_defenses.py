"""Attacks treat a defense of another package as they treat the built-in that it equals."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from attacks import ATTACKS
from attacks.scheduling import prepared
from attacks.scheduling.jobs import plan
from attacks.scheduling.worker import run_job
from experiments.plan.cells import Cell
from experiments.plan.config import Plan, parse_experiment
from experiments.plan.folder import Run
from experiments.stages.simulate import Simulator
from fedsim.defenses import DEFENSES
from fedsim.defenses.base import Defense
from tests.apps.cases import IMAGES, TEXT, merge
from tests.contract_cases import ATTACK_CASES, DEFENSE_CASES, IMAGES_ALONE, OTHER_MODELS
from tests.fakes.renamed_defenses import PREFIX, renamed

Pairs = Callable[[str], dict[str, tuple[Cell, Cell]]]
COPIES = {f"{PREFIX}{name}": renamed(cls) for name, cls in DEFENSES.items() if name != "none"}

VARIANTS: dict[str, list[dict[str, object]]] = {
    **{name: [{"name": name, **options}] for name, options in DEFENSE_CASES.items()},
    "sign-each": [{"name": "sign", "stage": "sample"}],
    "sign-mean": [{"name": "sign", "scale": "mean"}],
    "prune-each": [{"name": "prune", "fraction": 0.7, "stage": "sample"}],
    "noise-each": [{"name": "gaussian_noise", "std": 0.1, "stage": "sample"}],
    "int8": [{"name": "quantize", "kind": "int8"}],
    "dithered": [{"name": "gaussian_noise", "std": 0.01}, {"name": "sign"}],
    "flipped": [{"name": "sign"}, {"name": "gaussian_noise", "std": 0.5}],
}
del VARIANTS["none"]
for name in OTHER_MODELS:  # which are not here
    del VARIANTS[name]
UNFIT = {
    "image": {"freeze_embeddings"},
    "text": IMAGES_ALONE,
}
UNFIT["single"] = UNFIT["image"]
FEW = {"clip", "gaussian_noise", "prune", "quantize", "sign-mean", "noise-each", "dp_sgd"}
UNFIT["few"] = VARIANTS.keys() - FEW

KINDS: dict[str, dict[str, Any]] = {
    "image": merge(IMAGES, {"task": {"image_size": 16}}),
    "text": TEXT,
}
KINDS["single"] = KINDS["few"] = KINDS["image"]
SINGLE = {("ridge", "image"), ("lti", "image")}
"""Attacks that learn from images one by one, of which twenty are enough."""
STEPS = {"inverting": {"steps": 2}, "bayes": {"steps": 2}, "span": {"work": 2000}}
READERS = [
    pytest.param(
        name,
        "single" if (name, kind) in SINGLE else kind,
        marks=pytest.mark.slow,  # each of them trains under 58 defenses; bayes meets a few at once
    )
    for name, cls in ATTACKS.items()
    for kind in ("image", "text")
    if kind in ATTACK_CASES[name].cells
    and (name == "span" or "adaptive" in {field.name for field in dataclasses.fields(cls)})
]


def copied(chain: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{**table, "name": f"{PREFIX}{table['name']}"} for table in chain]


@pytest.fixture(scope="module", autouse=True)
def copies() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, cls in COPIES.items():
            patch.setitem(DEFENSES, name, cls)
        # What is learned once has a seed of its own for every defense, by its name.
        patch.setattr(prepared, "derive", lambda seed, *_: seed)
        yield


@pytest.fixture(scope="module")
def pairs(copies: None, tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Of a kind, by variant: a client with the built-in, and one with its copy."""

    @cache
    def simulated(kind: str) -> dict[str, tuple[Cell, Cell]]:
        chains = {key: v for key, v in VARIANTS.items() if key not in UNFIT[kind]}
        changes = {
            "auxiliary": {"split": "public", "rows": 20},
            "federation": {"rounds": 1, "clients": 1, "batch_size": 1 if kind == "single" else 2},
            "defenses": [
                {"chain": chain} for chain in (*chains.values(), *map(copied, chains.values()))
            ],
        }
        config = parse_experiment(merge(KINDS[kind], changes))
        root = tmp_path_factory.mktemp(kind)
        run = Run.create(Plan(name=config.name, experiments=(config,)), root / "run")
        with Simulator() as simulator:
            for cell in run.cells:
                simulator.simulate(cell)
        half = len(chains)
        both = zip(run.cells[:half], run.cells[half:], strict=True)
        return dict(zip(chains, both, strict=True))

    return simulated


def seen_and_guessed(cell: Cell, name: str, folder: Path) -> tuple[object, ...]:
    """The update, what became of the job, and the bytes of the guess."""
    options = {**ATTACK_CASES[name].options, **STEPS.get(name, {})}
    if name != "span":
        options["adaptive"] = True
    specs = plan(cell.captures.root, folder / "guesses", name, {"name": name, **options}, 0)
    records = [record for spec in specs for record in run_job(spec)]
    paths = [spec.guess_path(key) for spec in specs for key in spec.keys]
    return (
        [cell.captures.record(key).sha256 for key in cell.captures.keys()],
        [
            (record.status, record.reason.replace(PREFIX, ""), record.objective)
            for record in records
        ],
        [path.read_bytes() for path in paths if path.exists()],
    )


@pytest.mark.parametrize("name", [f.removeprefix(PREFIX) for f in COPIES])
def test_a_copy_is_no_instance_of_what_it_copies(name: str) -> None:
    copy = COPIES[PREFIX + name]
    assert copy.__mro__[1] is Defense
    assert [f.name for f in dataclasses.fields(copy)] == [
        f.name for f in dataclasses.fields(DEFENSES[name])
    ]


@pytest.mark.parametrize(
    ("name", "kind"), [pytest.param("bayes", "few", marks=pytest.mark.slow), *READERS]
)
def test_an_attack_meets_a_copy_as_the_built_in(
    name: str,
    kind: str,
    pairs: Pairs,
    tmp_path: Path,
) -> None:
    done = 0
    for variant, (own, other) in pairs(kind).items():
        expected = seen_and_guessed(own, name, tmp_path / variant / "own")
        assert seen_and_guessed(other, name, tmp_path / variant / "other") == expected, variant
        done += bool(expected[2])
    assert done > len(pairs(kind)) / 2
