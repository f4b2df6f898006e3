"""Pages about attacks, defenses and metrics, kept beside their classes: no look-up imports torch.

``manuals.json`` is written from the classes by ``python -m experiments.preview.manuals``; a test
fails where the two differ. Classes of other packages are imported, as nobody wrote theirs down.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, TypeAdapter

from experiments.plan.config import ExperimentConfig
from fedsim.config.build import misnamed, registry, suggest
from fedsim.config.section import ConfigSection
from fedsim.store.files import Record

FILE = Path(__file__).with_name("manuals.json")
Sentences: TypeAlias = dict[str, str]
KINDS = ("attacks", "defenses", "metrics")
"""Of classes, each with the entry points ``fedsim.<kind>``."""


class ClassPage(Record):
    """What is said of one class.

    Attributes:
        sentence: the first of its docstring.
        facts: what an attack needs, whose a defense is, or the unit of a metric.
        mark: the family of a defense, or which way an attacker wants a metric; empty of attacks.
        options: JSON schema of its options, each with its meaning.
    """

    sentence: str
    facts: str = ""
    mark: str = ""
    options: dict[str, Any]


def pages(kind: str) -> dict[str, ClassPage]:
    """The pages of a kind by name, those of installed packages included.

    Raises:
        ConfigError: an installed class cannot be loaded, or has the name of a built-in one.
    """
    known = {name: ClassPage.model_validate(page) for name, page in _written()[kind].items()}
    classes: dict[str, Any] = registry(dict.fromkeys(known, object), f"fedsim.{kind}")
    return {name: known.get(name) or page_of(cls) for name, cls in classes.items()}


def sentences(kind: str) -> Sentences:
    """The sentence of each model or data set, those of installed packages included."""
    known: Sentences = _written()[kind]
    classes: dict[str, Any] = registry(dict.fromkeys(known, object), f"fedsim.{kind}")
    return {n: known.get(n) or added(kind, n) + first_sentence(cls) for n, cls in classes.items()}


def added(kind: str, name: str) -> str:
    """The mark of what an installed package adds; empty of what is built in."""
    return "" if name in _written()[kind] else "[added] "


@cache
def _written() -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return tables


def page_of(cls: type[Any]) -> ClassPage:
    """The page of a class, from its docstring and the types of its options."""
    mark = getattr(cls, "family", "") or getattr(cls, "attacker_wants", "")
    schema = described(cls, TypeAdapter(cls).json_schema())
    return ClassPage(sentence=first_sentence(cls), facts=_facts(cls), mark=mark, options=schema)


def unknown_names(table: Mapping[str, Any]) -> list[str]:
    """Names and keys of attacks, defenses and metrics that their pages lack, without the classes.

    Args:
        table: of an experiment file, whose values may be anything.
    """
    faults = list[str]()
    for kind in ("attacks", "defenses"):
        known = pages(kind) if table.get(kind) else {}
        fields = {name: page.options.get("properties", {}) for name, page in known.items()}
        for where, part in _single(kind, _listed(table, kind)):
            faults += misnamed(part, where, known, fields.__getitem__)
    metrics = pages("metrics") if table.get("metrics") else {}
    for i, name in enumerate(_listed(table, "metrics")):
        if name not in metrics:
            faults.append(f"metrics[{i}]: {name!r} is not a metric. {suggest(str(name), metrics)}")
    return faults


def _listed(table: Mapping[str, Any], key: str) -> Sequence[Any]:
    """A list of the file; empty where it is none, which its type refuses."""
    return value if isinstance(value := table.get(key, ()), list | tuple) else ()


def _single(kind: str, tables: Sequence[Any]) -> Iterator[tuple[str, object]]:
    """Each table of one class with its place: a chain's parts, and an attack without variants."""
    for i, table in enumerate(tables):
        if not isinstance(table, Mapping):  # which its type refuses
            continue
        if kind == "defenses" and "chain" in table:
            chain = table["chain"] if isinstance(table["chain"], list | tuple) else ()
            yield from ((f"{kind}[{i}].chain[{j}]", part) for j, part in enumerate(chain))
        elif kind == "attacks":
            yield f"{kind}[{i}]", {key: v for key, v in table.items() if key != "variants"}
        else:
            yield f"{kind}[{i}]", table


def first_sentence(cls: object) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def sections(section: type[BaseModel] = ExperimentConfig, prefix: str = "") -> dict[str, Any]:
    """Tables of an experiment file, by dotted name."""
    tables: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, ConfigSection):
                tables |= {prefix + name: part, **sections(part, f"{prefix}{name}.")}
    return tables


def described(cls: type[Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema of a class and of the tables in it, with the docstrings' words on each option.

    Args:
        cls: the class.
        schema: as pydantic makes it, with whole docstrings and without a word on options.
    """
    tables = {part.__name__: part for part in sections().values()}
    parts = {name: described(tables[name], part) for name, part in schema.get("$defs", {}).items()}
    meanings = _meanings(cls)
    options = {
        name: {**option, "description": meanings[name]} if name in meanings else option
        for name, option in schema.get("properties", {}).items()
    }
    about = _split(cls.__doc__ or "")[0]
    return {
        **schema,
        "description": about,
        "properties": options,
        **({"$defs": parts} if parts else {}),
    }


def _meanings(cls: type[Any]) -> dict[str, str]:
    """What each option means, by the docstrings of the class and of those it inherits from."""
    meanings: dict[str, str] = {}
    for parent in reversed(cls.__mro__):
        meanings |= _split(parent.__doc__ or "")[1]
    return meanings


def _split(docstring: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description and the entries of its attributes."""
    about, _, listed = inspect.cleandoc(docstring).partition("\n\nAttributes:\n")
    listed = listed.partition("\n\nExample:\n")[0]
    entries = re.split(r"^(\w+): ", textwrap.dedent(listed), flags=re.MULTILINE)
    return about, {
        name: " ".join(text.split())
        for name, text in zip(entries[1::2], entries[2::2], strict=True)
    }


def _facts(cls: type[Any]) -> str:
    if hasattr(cls, "requires"):
        known = f" It needs to know: {', '.join(sorted(cls.requires))}." * bool(cls.requires)
        return f"It reconstructs {' and '.join(sorted(cls.modalities))}.{known}"
    if hasattr(cls, "run_by"):
        known = f"{cls.known[0].lower()}{cls.known[1:]}"
        claim = f" Its paper claims: {cls.claim}." * bool(cls.claim)
        return (
            f"Kind: {cls.family}. Run by {cls.run_by}.{claim} An adaptive attacker knows: {known}"
        )
    if hasattr(cls, "attacker_wants"):
        return f"Unit: {cls.unit}. The attacker wants it {cls.attacker_wants}."
    return ""


def from_classes() -> dict[str, dict[str, Any]]:
    """What the file has to hold; this imports every class."""
    from attacks import ATTACKS
    from fedsim.data import DATASETS
    from fedsim.defenses import DEFENSES
    from fedsim.defenses.base import DefenseFamily
    from fedsim.metrics import METRICS
    from fedsim.models import IMAGE_MODELS, TEXT_MODELS

    families = get_args(DefenseFamily)
    by_family = sorted(DEFENSES.items(), key=lambda item: families.index(item[1].family))
    kinds: dict[str, Mapping[str, type[Any]]] = {
        "attacks": ATTACKS,
        "defenses": dict(by_family),
        "metrics": METRICS,
    }
    tables: dict[str, dict[str, Any]] = {
        kind: {name: page_of(cls).model_dump(mode="json") for name, cls in classes.items()}
        for kind, classes in kinds.items()
    }
    images = {name: first_sentence(cls) for name, cls in IMAGE_MODELS.items()}
    tables["models"] = images | {name: _of_texts(folder) for name, folder in TEXT_MODELS.items()}
    tables["datasets"] = {name: first_sentence(cls) for name, cls in DATASETS.items()}
    return tables


def _of_texts(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind, tokens = config["model_type"].upper(), config["vocab_size"]
    return f"A small {kind} with random weights and a tokenizer of {tokens} tokens."


if __name__ == "__main__":
    FILE.write_text(json.dumps(from_classes(), indent=1) + "\n", "utf-8")
