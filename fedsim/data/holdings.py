"""Distribution of rows over the clients, the attacker and the evaluation of the global model."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedsim import seeds
from fedsim.config.cell import AuxiliaryConfig, CellConfig, TaskConfig
from fedsim.data.rows import Split, is_builtin, load_rows, split_sizes
from fedsim.data.tables import locate
from fedsim.errors import ConfigError
from fedsim.types import Rows


@dataclass(frozen=True)
class Criterion:
    """A condition that texts have to meet.

    Attributes:
        option: name of the condition in ``[task.filter]``.
        demand: property of the texts that are kept, for example "fewer than 40 tokens".
        keeps: function that decides for each text whether it has the property.
    """

    option: str
    demand: str
    keeps: Callable[[tuple[str, ...]], Sequence[bool]]


@dataclass(frozen=True)
class Filter:
    """Filters of Gupta et al. 2022 ("FILM"), applied one after another; by default there are none.

    Attributes:
        sentences: split each text into sentences first.
        criteria: conditions, each on what the ones before it left.
    """

    sentences: bool = False
    criteria: tuple[Criterion, ...] = ()

    def apply(self, rows: Rows, source: str) -> Rows:
        """The rows that pass; sentences of the same text share its row number.

        Args:
            rows: texts, unless the filter is empty.
            source: data set and split, for messages.

        Raises:
            ConfigError: no row is left.
        """
        fitting = self.cut(rows, source)
        for criterion in self.criteria:
            assert isinstance(fitting.inputs, tuple)
            passed = [i for i, keep in enumerate(criterion.keeps(fitting.inputs)) if keep]
            if not passed:
                raise ConfigError(
                    f"task.filter.{criterion.option}: none of the {len(fitting)} texts of {source} "
                    f"that are left of {len(rows)} rows has {criterion.demand}. "
                    "Relax the condition, or choose a longer split."
                )
            fitting = fitting.take(passed)
        return fitting

    def cut(self, rows: Rows, source: str) -> Rows:
        """The rows, split into sentences if the filter asks for that.

        Raises:
            ConfigError: no text holds a sentence.
        """
        if not self.sentences:
            return rows
        assert isinstance(rows.inputs, tuple)
        cut = [split_sentences(text) for text in rows.inputs]
        origin = [row for row, sentences in enumerate(cut) for _ in sentences]
        if not origin:
            raise ConfigError(
                f"task.filter.sentences: none of the {len(rows)} texts of {source} holds a "
                "sentence that ends with a full stop, '!' or '?'. Leave this option out."
            )
        inputs = tuple(sentence for sentences in cut for sentence in sentences)
        return replace(rows.take(origin), inputs=inputs)


NO_FILTER = Filter()
"""The empty filter, which every row passes unchanged."""


def split_sentences(text: str) -> list[str]:
    """Sentences of an English text with their end marks; text without one, as in headings, is lost.

    A mark ends a sentence at the end of the text, or if a space follows, the next letter is not
    small, and the mark does not belong to an initial or a title. WikiText puts a space before each
    mark and before a closing quotation mark.
    """
    sentences: list[str] = []
    start = 0
    for mark in _END.finditer(text):
        end = mark.end()
        following = _LETTER.search(text, end)
        abbreviated = _ABBREVIATED.search(text, start, mark.start() + 1)
        if following is not None and (abbreviated or following[0].islower()):
            continue
        if text.count('"', start, end) % 2 and (closing := _CLOSING.match(text, end)):
            end = closing.end()
        sentences.append(text[start:end].strip())
        start = end
    return [sentence for sentence in sentences if _LETTER.search(sentence)]


_END = re.compile(r"[.!?]+[\"\u201d\u2019)\]]*(?=\s|$)")
_LETTER = re.compile(r"[^\W_]")
_CLOSING = re.compile(r"\s\"(?=\s|$)")
_ABBREVIATED = re.compile(
    r"\b(?:[A-HJ-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Gen|Col|Capt|Sgt|Maj|Lt|Sen|Gov|Rev|Hon|No|Vol|vs|lit)"
    r"\s?\.\Z"
)


Modality: TypeAlias = Literal["image", "text"]


@dataclass(frozen=True, slots=True)
class Holdings:
    """Rows of a cell. The private rows overlap with neither of the others.

    Attributes:
        private: rows that are divided among the clients.
        auxiliary: rows that the attacker may own; None if the experiment names none.
        heldout: rows on which utility is measured.
    """

    private: Rows
    auxiliary: Rows | None
    heldout: Rows


def load_holdings(config: CellConfig, modality: Modality, filter_: Filter = NO_FILTER) -> Holdings:
    """Load the rows of a cell, apply the filter, and refuse overlaps.

    Private rows and other rows of the same split must have different numbers. Auxiliary rows with
    the same content as a private row are dropped, whatever their data set. The auxiliary split
    defaults to ``public`` for a built-in data set, and to ``train`` for a data set other than the
    task's. The rows of such a data set are split into sentences if the task's are, but not
    filtered.

    Raises:
        ConfigError: rows overlap, or a data set, split or column does not exist.
    """
    task = config.task
    private = _load_task(task, task.split, modality, filter_)
    private = _of_classes(private, task, f"{task.dataset} {task.split!r}")
    heldout_split = task.heldout_split or _heldout_split(task)
    heldout = _load_task(task, heldout_split, modality, filter_)
    _check_apart(task, private, "task.heldout_split", heldout_split, heldout)
    heldout = _of_classes(heldout, task, f"{task.dataset} {heldout_split!r}")
    auxiliary = None
    if config.auxiliary is not None:
        auxiliary = _load_auxiliary(config, config.auxiliary, private, modality, filter_)
    drawn = sorted(_draw(range(len(heldout)), task.heldout_rows, config.seed, "heldout"))
    return Holdings(private, auxiliary, heldout.take(drawn))


def _load_task(task: TaskConfig, split: str, modality: Modality, filter_: Filter) -> Rows:
    rows = load_rows(
        task.dataset,
        split,
        modality=modality,
        input_column=task.input_column,
        label_column=task.label_column,
        image_size=task.image_size,
    )
    return filter_.apply(rows, f"{task.dataset} {split!r}")


def _heldout_split(task: TaskConfig) -> str:
    private = Split.parse(task.split, task.dataset).name
    sizes = split_sizes(task.dataset)
    for name in ("validation", "test"):
        if name in sizes and name != private:
            return name
    raise ConfigError(
        f"task.heldout_split: {task.dataset} has no validation or test split besides {private!r}, "
        f"only {', '.join(sizes)}. Name rows that no client owns, for example '{private}[90%:]' "
        f"with split = '{private}[:90%]'."
    )


def _load_auxiliary(
    cell: CellConfig, config: AuxiliaryConfig, private: Rows, modality: Modality, filter_: Filter
) -> Rows:
    task = cell.task
    dataset = config.dataset or task.dataset
    same = is_same(dataset, task.dataset)
    split = config.split or _auxiliary_split(dataset, same)
    if same:
        rows = _load_task(task, split, modality, filter_)
        _check_apart(task, private, "auxiliary.split", split, rows)
    else:
        rows = load_rows(dataset, split, modality=modality, image_size=task.image_size)
        rows = filter_.cut(rows, f"{dataset} {split!r}")
    _check_shapes(dataset, rows, private)
    rows = unlike(rows, private)
    if not rows:
        raise ConfigError(
            f"auxiliary: every row of {dataset} {split!r} equals a private row. "
            "Name another data set or split."
        )
    return _draw_auxiliary(rows, cell, config, f"{dataset} {split!r}")


def _draw_auxiliary(rows: Rows, cell: CellConfig, config: AuxiliaryConfig, source: str) -> Rows:
    """Auxiliary rows with the share ``overlap`` of private classes; fewer if a kind is short."""
    auxiliary = _find(rows, config.classes, "auxiliary.classes", source)
    share, most = config.overlap, config.rows
    if not share:
        return rows.take(sorted(_draw(auxiliary, most, cell.seed, "auxiliary")))
    if not (config.classes and cell.task.classes):
        raise ConfigError(
            f"auxiliary.overlap: {share} of the rows belong to task.classes and the others to "
            "auxiliary.classes, but one of the two is empty. Name the classes of both."
        )
    shared = _find(rows, cell.task.classes, "task.classes", source)
    most = min(
        most, int(len(shared) / share), int(len(auxiliary) / (1 - share)) if share < 1 else most
    )
    count = round(share * most)
    drawn = {
        *_draw(shared, count, cell.seed, "auxiliary overlap"),
        *_draw(auxiliary, most - count, cell.seed, "auxiliary"),
    }
    return rows.take(sorted(drawn))


def _of_classes(rows: Rows, task: TaskConfig, source: str) -> Rows:
    """Rows of the task's classes."""
    return rows.take(_find(rows, task.classes, "task.classes", source)) if task.classes else rows


def _find(rows: Rows, classes: tuple[int, ...], where: str, source: str) -> list[int]:
    """Positions of the rows of these classes; of all rows if none is named."""
    labels = rows.labels.tolist()
    known = sorted(set(labels))
    for label in classes:
        if label not in known:
            names = dict(enumerate(rows.class_names))
            shown = ", ".join(f"{number} {names.get(number, '')}".strip() for number in known)
            raise ConfigError(
                f"{where}: {source} has no row of the class {label}. Its classes are {shown}."
            )
    return [i for i, label in enumerate(labels) if label in (classes or known)]


def is_same(dataset: str, other: str) -> bool:
    """True if two names mean the same data set, for example an id and its folder."""
    if is_builtin(dataset) or is_builtin(other):
        return dataset == other
    return locate(dataset) == locate(other)


def _auxiliary_split(dataset: str, same: bool) -> str:
    if is_builtin(dataset):
        return "public"
    if not same:
        return "train"
    raise ConfigError(
        f"auxiliary.split: it is empty, but {dataset} has no public split. "
        "Name rows that no client owns, for example 'train[50%:]'."
    )


def _check_apart(task: TaskConfig, private: Rows, where: str, split: str, rows: Rows) -> None:
    """Refuse rows of the task's data set that have the split and the number of a private row."""
    name = Split.parse(split, task.dataset).name
    if name != Split.parse(task.split, task.dataset).name:
        return
    common = set(private.numbers) & set(rows.numbers)
    if not common:
        return
    size = split_sizes(task.dataset)[name]
    first, last = min(private.numbers), max(private.numbers)
    if last + 1 < size:
        fix = f"Use '{name}[{last + 1}:]'"
    elif first > 0:
        fix = f"Use '{name}[:{first}]'"
    else:
        fix = f"Use '{name}[50%:]' with task.split = '{name}[:50%]'"
    raise ConfigError(
        f"{where}: row {min(common)} of {task.dataset} {split!r} is private, since task.split is "
        f"{task.split!r}. {fix}."
    )


def _check_shapes(dataset: str, rows: Rows, private: Rows) -> None:
    if not (isinstance(rows.inputs, Tensor) and isinstance(private.inputs, Tensor)):
        return
    if rows.inputs.shape[1:] != private.inputs.shape[1:]:
        shapes = ["x".join(map(str, images.shape[1:])) for images in (rows.inputs, private.inputs)]
        raise ConfigError(
            f"auxiliary.dataset: the images of {dataset} are {shapes[0]}, but the private ones are "
            f"{shapes[1]} (channels, height, width). Choose a data set of the same size."
        )


def fresh_rows(wanted: int, holdings: Holdings) -> Rows:
    """The held-out rows that differ from all private and auxiliary rows.

    Raises:
        ConfigError: there are fewer than ``wanted``.
    """
    others = [rows for rows in (holdings.private, holdings.auxiliary) if rows is not None]
    fresh = unlike(holdings.heldout, *others)
    if len(fresh) < wanted:
        raise ConfigError(
            f"candidates.fresh: {wanted} are requested, but only {len(fresh)} held-out rows "
            "differ from all private and auxiliary rows. Ask for fewer, or raise "
            "task.heldout_rows."
        )
    return fresh


def unlike(rows: Rows, *others: Rows) -> Rows:
    """Rows whose content differs from that of every other row."""
    known = {content for other in others for content in _contents(other)}
    return rows.take([i for i, content in enumerate(_contents(rows)) if content not in known])


def _contents(rows: Rows) -> list[bytes | str]:
    """Content by which rows are compared: pixels, or words regardless of case and spacing."""
    if isinstance(rows.inputs, Tensor):
        return [image.numpy().tobytes() for image in rows.inputs]
    return [" ".join(text.casefold().split()) for text in rows.inputs]


def _draw(positions: Sequence[int], most: int, seed: int, stage: str) -> list[int]:
    """At most ``most`` of the positions, drawn by the seed."""
    drawn = torch.randperm(len(positions), generator=seeds.generator(seed, stage))[:most]
    return [positions[i] for i in drawn.tolist()]
