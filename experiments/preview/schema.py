"""JSON Schema of an experiment file, with which editors complete and check the TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.plan.config import ExperimentConfig
from experiments.preview.manuals import ClassPage, described, pages

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The schema of an experiment or a suite, as JSON data.

    Each attack and each defense, installed ones included, has its own options. Whatever the schema
    accepts can still contradict itself; ``fedsim show`` checks the whole.
    """
    whole = described(ExperimentConfig, ExperimentConfig.model_json_schema())
    tables = whole["properties"]
    variants = {"type": "array", "items": {"type": "object"}}
    tables["attacks"]["items"] = _one_of(pages("attacks"), {"variants": variants})
    single = _one_of(pages("defenses"), {})
    chain = {"chain": {"type": "array", "items": single, "minItems": 1}}
    several = {"properties": chain, "required": ["chain"], "additionalProperties": False}
    tables["defenses"]["items"] = {"oneOf": [*single["oneOf"], several]}
    tables["suite"] = {
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
        "description": "Names or files of experiments that run into one folder.",
    }
    del whole["required"]
    return {
        "$schema": _DRAFT,
        "title": "fedsim experiment",
        **whole,
        "oneOf": [{"required": ["name", "task"]}, {"required": ["suite"]}],
    }


def _one_of(known: Mapping[str, ClassPage], more: Mapping[str, Any]) -> dict[str, Any]:
    """A table whose ``name`` chooses the class that its other keys are options of."""
    choices = []
    for name, page in known.items():
        options = page.options
        required = ["name", *options.get("required", ())]
        properties = {"name": {"const": name}, **options.get("properties", {}), **more}
        choices.append(
            {
                **options,
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            }
        )
    return {"oneOf": choices}
