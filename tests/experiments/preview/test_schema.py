import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from experiments.plan.config import shipped
from experiments.preview.manuals import schema

EXPERIMENT: dict[str, Any] = {"name": "mine", "task": {"model": "lenet", "dataset": "shapes"}}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    described = json.loads(json.dumps(schema()))
    jsonschema.Draft202012Validator.check_schema(described)
    return jsonschema.Draft202012Validator(described)


@pytest.mark.parametrize("path", shipped().values(), ids=lambda path: path.stem)
def test_every_shipped_experiment_is_valid(
    path: Path, validator: jsonschema.Draft202012Validator
) -> None:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(table)] == []


@pytest.mark.parametrize(
    "table",
    [
        {"task": EXPERIMENT["task"]},
        {"suite": []},
        {**EXPERIMENT, "tasks": {}},
        {**EXPERIMENT, "federation": {"client": 3}},
        {**EXPERIMENT, "federation": {"clients": "3"}},
        {**EXPERIMENT, "attacks": [{"name": "lampe"}]},
        {**EXPERIMENT, "attacks": [{"name": "lamp", "step": 3}]},
        {**EXPERIMENT, "defenses": [{"name": "gaussian_noise", "stdd": 0.1}]},
        {**EXPERIMENT, "defenses": [{"chain": [{"name": "prun"}]}]},
    ],
    ids=json.dumps,
)
def test_mistakes_are_invalid(
    table: dict[str, Any], validator: jsonschema.Draft202012Validator
) -> None:
    assert not validator.is_valid(table)


def test_options_carry_their_descriptions() -> None:
    described = schema()
    rate = described["$defs"]["FederationConfig"]["properties"]["learning_rate"]
    noise = next(
        choice
        for choice in described["properties"]["defenses"]["items"]["oneOf"]
        if choice["properties"].get("name", {}).get("const") == "gaussian_noise"
    )
    assert rate["description"]
    assert noise["properties"]["std"]["description"]
    assert "Attributes:" not in json.dumps(described)


@pytest.mark.usefixtures("fakes")
def test_installed_attacks_and_defenses_are_valid() -> None:
    table = {**EXPERIMENT, "attacks": [{"name": "fake"}], "defenses": [{"name": "fake_rectify"}]}
    assert jsonschema.Draft202012Validator(schema()).is_valid(table)
