"""Pages about attacks, defenses and metrics, kept beside their classes: no look-up imports torch.

``manuals.json`` is written from the classes by ``python -m experiments.preview.manuals``; a test
fails where the two differ. Classes of other packages are imported, as nobody wrote theirs down.
"""

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, TypeAdapter

from experiments.plan.config import ExperimentConfig, shipped
from fedsim.config.build import misnamed, registry, suggest
from fedsim.config.section import ConfigSection
from fedsim.config.toml_source import read_toml
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
        if isinstance(name, str) and name not in metrics:  # its type refuses others
            faults.append(f"metrics[{i}]: {name!r} is not a metric. {suggest(name, metrics)}")
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


def _attacks() -> dict[str, str]:
    return {n: added("attacks", n) + page.sentence for n, page in pages("attacks").items()}


def _metrics() -> dict[str, str]:
    known = pages("metrics")
    marks = {name: added("metrics", name) for name in known}
    return {n: f"{marks[n]}{p.sentence} The attacker wants it {p.mark}." for n, p in known.items()}


def _defenses() -> dict[str, str]:
    """By kind, in the order in which ``DefenseFamily`` names them."""
    known = pages("defenses")
    families = list(dict.fromkeys(page.mark for page in known.values()))
    ordered = sorted(known, key=lambda name: families.index(known[name].mark))
    return {name: f"[{known[name].mark}] {known[name].sentence}" for name in ordered}


def _models() -> dict[str, str]:
    return {**sentences("models"), "<hub id or folder>": "Any BERT-type or GPT-2-type model."}


def _datasets() -> dict[str, str]:
    known = (
        "uoft-cs/cifar10, uoft-cs/cifar100, ylecun/mnist, nyu-mll/glue:cola, nyu-mll/glue:sst2, "
        "cornell-movie-review-data/rotten_tomatoes, Salesforce/wikitext:wikitext-2-raw-v1, or any "
        "data set with an image or a text column."
    )
    return {**sentences("datasets"), "<hub id or folder>": known}


def _experiments() -> dict[str, str]:
    by_name = {}
    for name, path in shipped().items():
        members = read_toml(path).get("suite")
        suite = f" (runs {', '.join(members)})" if members else ""
        by_name[name] = opening(path) + suite
    return by_name


def opening(path: Path) -> str:
    """The first sentence of the comments of an experiment file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    # "Zhu et al. 2019" does not end a sentence.
    return re.split(r"(?<=[.?]) (?=[A-Z])", comment)[0]


CATALOGS: dict[str, Callable[[], dict[str, str]]] = {
    "attacks": _attacks,
    "defenses": _defenses,
    "metrics": _metrics,
    "models": _models,
    "datasets": _datasets,
    "experiments": _experiments,
}


def counts() -> dict[str, str]:
    """How many entries each list has; a place for a name of one's own is none."""
    named = {
        what: sum(not name.startswith("<") for name in find()) for what, find in CATALOGS.items()
    }
    return {what: f"{count} of them: fedsim list {what}" for what, count in named.items()}


if __name__ == "__main__":
    FILE.write_text(json.dumps(from_classes(), indent=1) + "\n", "utf-8")
