"""Reading an experiment: overrides, suites, sweeps, cells, and the run folder that keeps them."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.plan.cells import fingerprint, make_cells
from experiments.plan.config import (
    AttackStage,
    ExperimentConfig,
    Plan,
    find,
    load_plan,
    parse_experiment,
    shipped,
)
from experiments.plan.entries import entries
from experiments.plan.folder import Run
from fedsim.errors import ConfigError
from tests.apps.cases import IMAGES, merge

TABLE: dict[str, Any] = {"name": "e", "task": {"model": "lenet", "dataset": "shapes"}}


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def experiment(path: Path, more: str = "") -> str:
    return write(path, f'name = "{path.stem}"\n{more}\n[task]\nmodel = "lenet"\ndataset = "shapes"')


def cells_of(**changes: object) -> list[str]:
    config = parse_experiment(merge(TABLE, changes))
    return [cell.name for cell in make_cells(Plan(name="e", experiments=(config,)), Path("r"))]


def test_an_experiment_needs_a_name_and_a_task_only() -> None:
    config = parse_experiment(TABLE)
    assert config.seeds == (0,)
    assert config.defenses == ({"name": "none"},)
    assert (config.attacks, config.metrics, config.sweep, config.auxiliary) == ((), (), {}, None)
    assert config == ExperimentConfig.model_validate_json(config.model_dump_json())


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("federation.rounds=5", 5),
        ("federation.engine=in-process", "in-process"),
        ('federation.engine="in-process"', "in-process"),
        ("federation.learning_rate=1e-3", 1e-3),
        ("federation.learning_rate=1", 1.0),
        ("federation.train_mode=true", True),
        ("capture.rounds=[1]", (1,)),
        ("seeds=[3, 4]", (3, 4)),
        ("task.split=train[:9]", "train[:9]"),
        ("attacks.0.steps=7", 7),
        ("auxiliary.split=public", "public"),
    ],
)
def test_an_override_is_typed(override: str, value: object, tmp_path: Path) -> None:
    path = experiment(tmp_path / "e.toml", 'attacks = [{name = "dlg"}]')
    node: Any = load_plan(path, [override]).experiments[0]
    for part in override.split("=")[0].split("."):
        node = node[int(part)] if part.isdigit() else _get(node, part)
    assert node == value
    assert type(node) is type(value)


def _get(node: Any, part: str) -> Any:
    return node[part] if isinstance(node, dict) else getattr(node, part)


def test_only_the_first_equals_sign_counts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'^name: "a=b" does not fit: it names a folder'):
        load_plan(experiment(tmp_path / "e.toml"), ["name=a=b"])


def test_an_override_takes_the_place_of_a_sweep(tmp_path: Path) -> None:
    path = experiment(
        tmp_path / "e.toml", 'sweep = {"federation.rounds" = [2, 3], "task.max_length"=[8]}'
    )
    (config,) = load_plan(path, ["federation.rounds=4"]).experiments
    assert config.federation.rounds == 4
    assert config.sweep == {"task.max_length": (8,)}


def test_the_last_of_two_overrides_counts(tmp_path: Path) -> None:
    path = experiment(tmp_path / "e.toml")
    plan = load_plan(path, ["federation.rounds=4", "federation.rounds=5"])
    assert plan.experiments[0].federation.rounds == 5


def test_a_suite_names_files_beside_it_and_shipped_experiments(tmp_path: Path) -> None:
    experiment(tmp_path / "mine.toml")
    suite = write(tmp_path / "both.toml", 'suite = ["mine.toml", "quickstart-text"]')
    plan = load_plan(suite, ["federation.rounds=2"])
    assert plan.name == "both"
    assert [part.name for part in plan.experiments] == ["mine", "quickstart-text"]
    assert {part.federation.rounds for part in plan.experiments} == {2}


def test_a_shipped_experiment_is_found_by_name_and_a_file_by_its_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment(tmp_path / "quickstart.toml")
    assert find("quickstart.toml") == Path("quickstart.toml")
    assert find("quickstart") == shipped()["quickstart"]


def test_cells_are_seeds_times_swept_values_times_defenses() -> None:
    names = cells_of(
        seeds=[0, 1],
        sweep={"federation.batch_size": [1, 2, 4], "server_knows.labels": [True, False]},
        defenses=[
            {"name": "none"},
            {"chain": [{"name": "sign"}, {"name": "gaussian_noise", "std": 1}]},
        ],
    )
    assert len(set(names)) == len(names) == 2 * 6 * 2
    assert {name.split(".")[1] for name in names} == {"none", "sign+gaussian_noise"}


def test_a_cell_is_known_by_what_determines_its_captures() -> None:
    same: list[dict[str, Any]] = [
        {},
        {"federation": {"engine": "in-process", "client_workers": 7, "client_timeout": 1.0}},
        {"attack_stage": {"gpus": 0.5, "tf32": True}},
        {"attacks": [{"name": "prior_only"}], "metrics": ["mse"], "attack_stage": {"workers": 9}},
        {"seeds": [0], "federation": {"rounds": 1}},
        {"task": {"filter": {"tokens_below": 0}}},
        {"probes": {"member": 0, "fresh": 0}},
    ]
    other: list[dict[str, Any]] = [
        {"seeds": [1]},
        {"federation": {"rounds": 2}},
        {"federation": {"client_gpus": 0.5}},
        {"federation": {"client_gpus": 0.5, "tf32": True}},
        {"task": {"split": "train[:9]"}},
        {"task": {"filter": {"tokens_below": 40}}},
        {"auxiliary": {}},
        {"capture": {"rounds": [1]}},
        {"probes": {"fresh": 1}},
        {"server_knows": {"labels": True}},
        {"defenses": [{"name": "sign"}]},
    ]
    assert len({cells_of(**changes)[0] for changes in same}) == 1
    shares = [{"federation": {"client_gpus": share}} for share in (0.5, 1.0)]
    assert len({cells_of(**changes)[0] for changes in shares}) == 1
    names = {cells_of(**changes)[0] for changes in [{}, *other]}
    assert len(names) == 1 + len(other)


def test_swept_values_reach_the_cell() -> None:
    config = parse_experiment(merge(TABLE, {"sweep": {"federation.batch_size": [3, 5]}}))
    cells = make_cells(Plan(name="e", experiments=(config,)), Path("r"))
    assert [cell.config.federation.batch_size for cell in cells] == [3, 5]
    assert [cell.experiment.federation.batch_size for cell in cells] == [3, 5]
    assert [cell.name for cell in cells] == [f"e.none.{fingerprint(c.config)}" for c in cells]


def test_what_is_swept_is_checked_in_each_cell() -> None:
    """Round 3 exists in one of the two cells only."""
    with pytest.raises(ConfigError, match=r"^capture.rounds: 3 is out of range: the rounds"):
        cells_of(capture={"rounds": [3]}, sweep={"federation.rounds": [3, 2]})
    assert len(cells_of(capture={"rounds": [3]}, sweep={"federation.rounds": [3, 4]})) == 2


def test_a_run_folder_gives_its_plan_back(tmp_path: Path) -> None:
    config = parse_experiment(
        merge(
            IMAGES,
            {
                "sweep": {"federation.rounds": [1, 2]},
                "defenses": [{"name": "none"}, {"chain": [{"name": "sign"}]}],
                "auxiliary": {"split": "public"},
            },
        )
    )
    run = Run.create(Plan(name="p", experiments=(config,)), tmp_path / "run")
    found = Run.open(tmp_path / "run")
    assert found == run
    assert len(found.cells) == 4
    for cell in found.cells:
        assert json.loads((cell.folder / "cell.json").read_text())["seed"] == 0


def test_a_planned_run_writes_nothing(tmp_path: Path) -> None:
    plan = Plan(name="p", experiments=(parse_experiment(IMAGES),))
    assert Run.plan_at(plan, tmp_path / "run").cells
    assert list(tmp_path.iterdir()) == []


def test_a_shorter_file_does_not_lose_what_was_simulated(tmp_path: Path) -> None:
    """The same folder with another defense keeps the cells of the first."""
    first = Run.create(Plan(name="p", experiments=(parse_experiment(IMAGES),)), tmp_path)
    (first.cells[0].folder / "simulation.json").write_text("{}")
    changed = parse_experiment(merge(IMAGES, {"defenses": [{"name": "sign"}, {"name": "none"}]}))
    second = Run.create(Plan(name="p", experiments=(changed,)), tmp_path)
    assert [cell.simulated for cell in second.cells] == [False, True]


def test_variants_of_an_attack_follow_it_with_some_options_changed() -> None:
    attack = {"name": "dlg", "steps": 5, "variants": [{"steps": 6}, {"labels": "joint"}]}
    found = entries(parse_experiment(merge(IMAGES, {"attacks": [attack]})))
    assert [entry.table for entry in found] == [
        {"name": "dlg", "steps": 5},
        {"name": "dlg", "steps": 6},
        {"name": "dlg", "steps": 5, "labels": "joint"},
    ]
    assert len({entry.label for entry in found}) == 3


@pytest.mark.parametrize(
    ("variants", "fault"),
    [
        ([{}], r"attacks\[0\]\.variants\[0\]: the same attack stands there twice\. Remove one\."),
        ([{"name": "idlg"}], r"attacks\[0\]\.variants\[0\]\.name: a variant is of the same attack"),
        ([{"stepz": 1}], r"attacks\[0\]\.variants\[0\]\.stepz: dlg has no such option\. Did you"),
        ("adaptive", r"attacks\[0\]\.variants: 'adaptive' does not fit\. Write a list of tables"),
    ],
)
def test_a_wrong_variant(variants: object, fault: str) -> None:
    table = merge(IMAGES, {"attacks": [{"name": "dlg", "variants": variants}]})
    with pytest.raises(ConfigError, match=fault):
        entries(parse_experiment(table))


def test_the_clock_decides_no_shipped_number() -> None:
    """Schedules and budgets of work end searches; the clock is a guard of an hour or more."""
    guard = AttackStage().time_budget
    assert guard >= 3600
    for name in shipped():
        for config in load_plan(name, ()).experiments:
            assert config.attack_stage.time_budget >= guard, name
