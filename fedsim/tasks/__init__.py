"""Registry of the tasks, and how a task is made, saved with the captures and loaded by attacks."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.config.build import registry, suggest
from fedsim.config.cell import KINDS, TaskConfig, TaskKind
from fedsim.config.named_code import check_code, is_allowed, is_named, named_function
from fedsim.errors import ConfigError, StoreError
from fedsim.models import IMAGE_MODELS, families, is_image_model, transformer
from fedsim.store.files import check_hashes, hashes, read_json, read_record, write_json
from fedsim.tasks.base import Task, TaskSpec
from fedsim.tasks.given import task_of
from fedsim.tasks.given_transformer import as_given
from fedsim.tasks.images import ImageClassification, image_spec
from fedsim.tasks.language_modelling import LanguageModelling
from fedsim.tasks.masked_language_modelling import MaskedLanguageModelling
from fedsim.tasks.text import TextTask, text_spec
from fedsim.tasks.text_classification import TextClassification
from fedsim.tasks.weights import initial_weights
from fedsim.types import Rows

__all__ = [
    "TASKS",
    "from_elsewhere",
    "held",
    "initial_weights",
    "is_held",
    "is_loadable",
    "load_task",
    "make_task",
    "save_task",
    "task_classes",
    "task_kind",
]

_HASHES = "tokenizer-hashes.json"
_REMEDY = "Restore it, or capture again."

TASKS: dict[str, type[Task]] = {
    "image-classification": ImageClassification,
    "text-classification": TextClassification,
    "language-modelling": LanguageModelling,
    "masked-language-modelling": MaskedLanguageModelling,
}

_TEXT_KINDS: tuple[TaskKind, ...] = (
    "text-classification",
    "language-modelling",
    "masked-language-modelling",
)


def task_kind(config: TaskConfig) -> TaskKind:
    """Kind of the task: the one that the experiment asks for, else the default of the model.

    A task added by another package has the kind of the class that it derives from.

    Raises:
        ConfigError: the model or the kind is unknown, or they do not fit each other.
    """
    asked = None if config.kind == "auto" else _kind_of(config.kind)
    if is_image_model(config.model):
        fits: tuple[TaskKind, ...] = ("image-classification",)
        family = "built-in image" if config.model in IMAGE_MODELS else "foreign image"
    else:
        family = transformer.model_type(config.model)
        if config.unchecked and family not in families.FAMILIES:
            fits = ()
        else:
            fits = families.family(config.model, family).kinds
    if asked is None:
        if fits:
            return fits[0]
        raise ConfigError(
            f"task.kind: is not known for {config.model!r}, which is of the type {family!r}. "
            f"Set {_either(_TEXT_KINDS)}."
        )
    known = fits or _TEXT_KINDS
    if asked not in known:
        raise ConfigError(
            f"task.kind: {config.model!r}, a {family} model, does not fit {config.kind!r}. "
            f"Set {_either(known)}, or choose another model."
        )
    return asked


def _kind_of(name: str) -> TaskKind:
    classes = task_classes()
    if name not in classes:
        raise ConfigError(f"task.kind: {name!r} is not known. {suggest(name, ['auto', *classes])}")
    for kind in KINDS:
        if issubclass(classes[name], TASKS[kind]):
            return kind
    raise ConfigError(
        f"task.kind: {name!r} does not derive from a task of fedsim, so its kind of model is "
        f"unknown. Derive it from the class of {_either(KINDS)}."
    )


def task_classes() -> dict[str, type[Task]]:
    """Built-in tasks, and those that installed packages register as entry points."""
    return registry(TASKS, "fedsim.tasks")


def _either(kinds: Iterable[TaskKind]) -> str:
    return " or ".join(map(repr, kinds))


def make_task(config: TaskConfig, rows: Rows) -> Task:
    """Task of a model on rows such as these; loads the tokenizer of a text model."""
    kind = task_kind(config)
    name = kind if config.kind == "auto" else config.kind
    added = {"added": name} if name != kind else {}
    cls = task_classes()[name]
    if not issubclass(cls, TextTask):
        return cls(image_spec(config, rows).model_copy(update=added))
    tokenizer = transformer.tokenizer(transformer.locate_tokenizer(config))
    return cls(text_spec(config, kind, rows, tokenizer).model_copy(update=added), tokenizer)


def save_task(task: Task, folder: Path) -> None:
    """Write ``task.json`` and, for a text task, ``tokenizer/`` with the hashes of its files."""
    if isinstance(task, TextTask):
        (folder / _HASHES).unlink(missing_ok=True)
        task.tokenizer.save_pretrained(str(folder / "tokenizer"))
        write_json(folder / _HASHES, hashes(folder / "tokenizer"))
    # Written last: a folder with task.json is complete.
    write_json(folder / "task.json", task.spec)


def read_spec(folder: Path) -> TaskSpec:
    """The spec in ``task.json``, equal to the one that ``save_task`` wrote.

    Raises:
        StoreError: the file is missing, cut or altered.
    """
    return read_record(folder / "task.json", TaskSpec).model_copy(update={"seal": None})


_held: dict[Path, Task] = {}


@contextmanager
def held(task: Task, folder: Path) -> Iterator[None]:
    """Let ``load_task`` return a task whose network or loss this process alone holds."""
    _held[folder] = task
    try:
        yield
    finally:
        del _held[folder]


def is_held(folder: Path) -> bool:
    """Whether this process alone can load the task of the captures, see ``held``."""
    return folder in _held


def is_loadable(folder: Path) -> bool:
    """Whether the network may be built: it is held, or no file alone names its code."""
    if is_held(folder):
        return True
    spec = read_spec(folder)
    if spec.factory:
        return is_allowed(spec.factory) and (not spec.loss or is_allowed(spec.loss))
    return is_allowed(spec.model) or not is_named(spec.model)


def load_task(folder: Path, *, network: bool = True) -> Task:
    """Read what ``save_task`` wrote, without the hub or the folder of the model.

    Args:
        folder: of the captures.
        network: whether the task has to build its network. Examples are compared without it, so
            that a task of another application's network loads without its code.

    Raises:
        StoreError: a file is missing or broken, the task's package is not installed, or a function
            makes the model that no user has named.
        ConfigError: the tokenizer names code of its own.
    """
    if folder in _held:
        return _held[folder]
    spec = read_spec(folder)
    if spec.factory:
        return _of_factory(spec, folder) if network else ImageClassification(spec)
    name = spec.added or spec.kind
    classes = task_classes()
    if name not in classes:
        raise StoreError(
            f"{folder / 'task.json'}: the task {name!r} is not installed here. "
            "Install the package that adds it."
        )
    cls = classes[name]
    if not issubclass(cls, TextTask):
        return cls(spec)
    path = folder / "tokenizer"
    transformer.check_no_code(str(path))
    if (folder / _HASHES).exists():  # not in older captures
        check_hashes(path, read_json(folder / _HASHES), _REMEDY)
    try:
        task = cls(spec, transformer.tokenizer(str(path)))
    except ConfigError:
        raise StoreError(
            f"{path / 'tokenizer.json'}: is missing or holds no tokenizer. {_REMEDY}"
        ) from None
    return as_given(task) if from_elsewhere(folder) else task


def from_elsewhere(captures: Path) -> bool:
    """Whether the captures are another application's."""
    return (captures / "run.json").exists()


def _of_factory(spec: TaskSpec, folder: Path) -> Task:
    """The task of a network that the user has named, with its loss, on this command line."""
    check_code(spec.factory, spec.loss, folder / "task.json")
    shape = spec.owner_shape or spec.input_shape
    model = named_function(spec.factory, "model")
    loss = named_function(spec.loss, "loss") if spec.loss else None
    return task_of(model, loss=loss, input_shape=shape, input_range=(spec.low, spec.high))
