"""fedsim describe: every attack, defense, metric and section, with each of its options."""

import dataclasses
import json
import re
import sys
from typing import Any

import pytest

from attacks import ATTACKS
from experiments import cli
from experiments.plan.config import AttackStage, ExperimentConfig, VerdictRule
from experiments.preview.describe import manual
from fedsim.config.cell import (
    AuxiliaryConfig,
    CaptureConfig,
    FilterConfig,
    ProbesConfig,
    ServerKnows,
    TaskConfig,
)
from fedsim.config.federation import FederationConfig
from fedsim.defenses import DEFENSES
from fedsim.errors import ConfigError
from fedsim.metrics import METRICS

SECTIONS: dict[str, Any] = {
    "experiment": ExperimentConfig,
    "task": TaskConfig,
    "task.filter": FilterConfig,
    "auxiliary": AuxiliaryConfig,
    "federation": FederationConfig,
    "capture": CaptureConfig,
    "probes": ProbesConfig,
    "server_knows": ServerKnows,
    "attack_stage": AttackStage,
    "verdict": VerdictRule,
}
PARTS: dict[str, Any] = {**ATTACKS, **DEFENSES, **METRICS}


@pytest.mark.some(4)
@pytest.mark.parametrize("name", PARTS)
def test_each_option_of_a_part_has_its_line(name: str) -> None:
    page = manual(name)
    lines = page.text().splitlines()
    fields = dataclasses.fields(PARTS[name])
    assert [option.name for option in page.options] == [field.name for field in fields]
    for option, field in zip(page.options, fields, strict=True):
        (line,) = [line for line in lines if line.startswith(f"  {field.name}: ")]
        assert option.required == (field.default is dataclasses.MISSING)
        if option.required:
            assert line.endswith("has to be given")
        elif field.default is not None:
            assert line.endswith(f"default {json.dumps(field.default)}")
    assert PARTS[name].__doc__.split()[0] in page.about
    assert "Attributes:" not in page.text()


@pytest.mark.parametrize("name", SECTIONS)
def test_each_option_of_a_section_has_its_line(name: str) -> None:
    page = manual(name)
    assert [option.name for option in page.options] == list(SECTIONS[name].model_fields)
    for option in page.options:
        assert re.search(rf"^  {option.name}: \S", page.text(), re.MULTILINE)
        assert option.required == SECTIONS[name].model_fields[option.name].is_required()


def test_a_section_within_a_section_is_pointed_to() -> None:
    federation = "  federation: table, default {}\n      See fedsim describe federation.\n"
    assert federation in manual("experiment").text()
    assert "which texts are kept. See fedsim describe task.filter." in manual("task").text()
    assert manual("task.filter").place == "a section, [task.filter]"


def test_types_bounds_defaults_and_meanings_are_told() -> None:
    """Also what a parent class says of an option, and what the class changes of it."""
    dp = {option.name: option for option in manual("dp_sgd").options}
    assert (dp["clip"].type, dp["clip"].default) == ("number above 0", None)
    assert (dp["epsilon"].required, dp["epsilon"].default) == (False, None)
    assert dp["delta"].type == "number above 0 and below 1"
    tag = {option.name: option for option in manual("tag").options}
    assert tag["distance"].type == '"cosine" or "l2" or "l2l1"'
    assert (tag["distance"].default, manual("lamp").options[0].default) == ("l2l1", "cosine")
    assert tag["layers"].type == "list of: text"
    assert "It reconstructs text. It needs to know: num_examples." in manual("tag").about
    assert "Unit: dB. The attacker wants it higher." in manual("psnr").about


@pytest.mark.parametrize(
    ("name", "entry"),
    [("LAMP", "lamp"), ("LTI", "lti"), ("FILM", "film"), ("GI-GIP", "gi_gip")],
)
def test_names_as_the_papers_spell_them(name: str, entry: str) -> None:
    assert manual(name).name == entry


def test_a_misspelt_name_in_capitals_is_suggested() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'inverting'"):
        manual("INVERTNG")


def test_every_option_of_a_defense_says_what_it_means() -> None:
    for name in DEFENSES:
        assert all(option.meaning for option in manual(name).options), name


@pytest.mark.parametrize("name", DEFENSES)
def test_a_defense_says_whose_it_is_who_runs_it_and_what_is_known_of_it(name: str) -> None:
    said, cls = manual(name).about, DEFENSES[name]
    assert {"family", "known"} <= vars(cls).keys(), "not its own"
    assert f"Kind: {cls.family}. Run by {cls.run_by}." in said
    assert cls.known.endswith(".")
    assert said.endswith(cls.known[1:])
    assert (f"Its paper claims: {cls.claim}." in said) == bool(cls.claim)
    # mixup was proposed for accuracy.
    assert bool(cls.claim) == (cls.family == "published") or name == "mixup"


@pytest.mark.usefixtures("fakes")
def test_what_a_package_adds_is_described_too() -> None:
    assert manual("fake_rectify").options[0].name == "floor"
    assert manual("fake").options[0].name == "act"


def test_as_one_json_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedsim", "describe", "prune", "--json"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = json.loads(capsys.readouterr().out)
    assert stop.value.code == 0
    assert printed["name"] == "prune"
    assert {option["name"]: option["default"] for option in printed["options"]} == {
        "stage": "client",
        "fraction": None,
        "scope": "global",
        "keep": "largest",
    }


def test_an_experiment_is_shown_and_not_described() -> None:
    with pytest.raises(ConfigError, match=r"is an experiment\. fedsim show film-ablation says"):
        manual("film-ablation")
