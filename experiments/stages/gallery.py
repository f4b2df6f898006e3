"""The few private examples that the page shows beside the guesses. They are chosen by rank."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from experiments.plan.cells import Cell
from experiments.plan.entries import entries
from experiments.stages.png import png
from experiments.wording.names import settings
from fedsim.api.guesses import matched, read_guess
from fedsim.api.victims import Victims
from fedsim.columns import decoded
from fedsim.metrics.base import Examples
from fedsim.records import (
    MAIN,
    PRIOR_ONLY,
    AttackKey,
    DefenseKey,
    ExampleKey,
    Modality,
    ScoreRow,
)
from fedsim.store.capture import CaptureKey
from fedsim.store.files import Record
from fedsim.store.plain_files import make_private
from fedsim.store.rows import read_rows, write_rows
from fedsim.tasks.base import Task
from fedsim.tasks.images import ImageClassification

FILE = Path("gallery") / "examples.parquet"
SHOWN: dict[Modality, int] = {"image": 5, "text": 3}
"""Of five, the most and the least leaked and the quartiles; of three, the median between them."""
_COLUMNS = 24
"""Numbers of a row that are drawn."""
_ROUNDED = 1e-3
"""By how much a main metric may exceed a blind guess's and be the same guess, in dB or as a share.
Half and twice of it name the same victims: a guess at the prior's mean is the same to six digits.
"""
LINED_UP = 3
"""Victims of each undefended attack whose guesses under every attack and defense are kept."""


class Position(NamedTuple):
    """The place of an example in a training; under each defense the same example stands there."""

    seed: int
    round: int
    client: int
    example: int


class Shown(Record):
    """A private example and the guess matched to it; a row of ``gallery/examples.parquet``.

    Attributes:
        example: position in the client's batch.
        rank: by the main metric among the examples of this attack and defense, over all seeds; 1 is
            the most leaked.
        total: how many examples these are.
        value: of the main metric; None where it was not measured.
        certified: whether the attack proves the guess; None where it says nothing.
        original: an image as a PNG file, or a text in UTF-8 with one space between words.
        guess: as ``original``; None where no guess is matched.
        blind: that a guess which never saw this victim's update comes as near: the prior's mean
            is no victim.
    """

    cell: str
    attack: str
    attack_options: str
    round: int
    client: int
    example: int
    rank: int
    total: int
    value: float | None
    certified: bool | None
    original: bytes
    guess: bytes | None
    blind: bool = False

    @property
    def name(self) -> str:
        """Round, client and position, as in the rows."""
        return f"round {self.round}, client {self.client}, example {self.example}"

    def position(self, seed: int) -> Position:
        """Its place in a training with this seed."""
        return Position(seed, self.round, self.client, self.example)


def read_gallery(run: Path) -> list[Shown]:
    """The examples that the score stage has chosen."""
    return read_rows(run / FILE, Shown)


def write_gallery(run: Path, shown: Sequence[Shown]) -> None:
    """Write the examples into a folder that its owner alone can read (mode 0700)."""
    make_private((run / FILE).parent)
    write_rows(run / FILE, Shown, shown)


def gallery(cells: Sequence[Cell], rows: Iterable[ScoreRow]) -> Iterator[Shown]:
    """Some examples of every attack and defense, from the most to the least leaked.

    These are some ranks of each, and the examples at some ranks of each undefended attack, so that
    the page can show the same victims under every defense.
    """
    wanted: dict[str, list[_Chosen]] = defaultdict(list)
    for chosen in _choose(cells, rows):
        wanted[chosen.example.cell].append(chosen)
    for cell in cells:
        if cell.name in wanted:
            yield from _show(Victims(cell), wanted[cell.name])


class _Pool(NamedTuple):
    """The cells that differ in nothing but their seed, as the page pools them."""

    task: str
    dataset: str
    model: str
    protocol: str
    setting: str
    defense: DefenseKey

    @property
    def modality(self) -> Modality:
        """By the kind of the task."""
        return "image" if self.task.startswith("image") else "text"

    @property
    def undefended(self) -> bool:
        """Whether its cells have no defense."""
        return self.defense.defense == "none"

    @property
    def any_defense(self) -> tuple[str, ...]:
        """The key without the defense."""
        return self[:-1]


class _Chosen(NamedTuple):
    attack: AttackKey
    example: ExampleKey
    rank: int
    total: int
    value: float | None
    blind: bool


def _choose(cells: Sequence[Cell], rows: Iterable[ScoreRow]) -> Iterator[_Chosen]:
    labels = settings(
        {cell.name: cell.config for cell in cells},
        {cell.name: cell.experiment.name for cell in cells},
    )
    groups: dict[tuple[_Pool, AttackKey], dict[ExampleKey, float | None]] = defaultdict(dict)
    nulls: dict[ExampleKey, float] = {}
    for row in rows:
        if row.control != "none" or row.attack == PRIOR_ONLY:
            _keep_best(nulls, row)
        if (row.control, row.probe) != ("none", "none") or row.unscored:
            continue
        if row.attack == PRIOR_ONLY:  # it made its guess without the victim
            continue
        names = (row.task, row.dataset, row.model, row.protocol)
        pool = _Pool(*names, labels[row.cell], DefenseKey(row.defense, row.defense_options))
        group = groups[pool, row.attack_key]
        group.setdefault(row.example_key, None)
        if row.metric == MAIN[pool.modality]:
            group[row.example_key] = row.value
    seeds = {cell.name: cell.config.seed for cell in cells}
    ranked = {
        key: sorted(group, key=lambda example: (-_leaked(group[example]), example))
        for key, group in groups.items()
    }
    lined_up = _lined_up(ranked, seeds)
    for (pool, attack), examples in ranked.items():
        shown = set(ranks(len(examples), SHOWN[pool.modality]))
        wanted = lined_up[pool.any_defense]
        for rank, example in enumerate(examples, 1):
            if rank in shown or _position(example, seeds) in wanted:
                value = groups[pool, attack][example]
                null = nulls.get(example)
                blind = value is not None and null is not None and value <= null + _ROUNDED
                yield _Chosen(attack, example, rank, len(examples), value, blind)


def _keep_best(nulls: dict[ExampleKey, float], row: ScoreRow) -> None:
    """Keep the best main value of guesses at an example that never saw its update."""
    if row.metric in MAIN.values() and row.value is not None:
        before = nulls.get(row.example_key, -math.inf)
        nulls[row.example_key] = max(before, row.value)


def _lined_up(
    ranked: Mapping[tuple[_Pool, AttackKey], Sequence[ExampleKey]], seeds: Mapping[str, int]
) -> Mapping[tuple[str, ...], set[Position]]:
    """The victims to show under every defense, by pool without the defense.

    They are chosen where nothing is defended; where every cell is, under each defense.
    """
    bare = {pool.any_defense for pool, _ in ranked if pool.undefended}
    by_pool: defaultdict[tuple[str, ...], set[Position]] = defaultdict(set)
    for (pool, _), examples in ranked.items():
        if pool.undefended or pool.any_defense not in bare:
            by_pool[pool.any_defense] |= {
                _position(examples[rank - 1], seeds) for rank in ranks(len(examples), LINED_UP)
            }
    return by_pool


def _position(example: ExampleKey, seeds: Mapping[str, int]) -> Position:
    return Position(seeds[example.cell], example.round, example.client, example.example)


def _leaked(value: float | None) -> float:
    """To sort by: the higher the main metric, the more leaked; what has no value comes last."""
    return -math.inf if value is None else value


def ranks(total: int, count: int) -> list[int]:
    """Which ranks of ``total`` are shown: ``count``, evenly spaced from the first to the last."""
    if total <= count:
        return list(range(1, total + 1))
    return [1 + round(i * (total - 1) / (count - 1)) for i in range(count)]


def _show(victims: Victims[Cell], wanted: Iterable[_Chosen]) -> Iterator[Shown]:
    known = {entry.key: entry for entry in entries(victims.cell.experiment)}
    task = victims.task
    for attack, example, rank, total, value, blind in wanted:
        key = CaptureKey(round=example.round, client=example.client)
        truth, number = victims.examples(key), example.example
        pairing = matched(read_guess(victims, known[attack].label, key), truth, task.modality)
        missed = pairing.assignment[number] is None
        yield Shown(
            cell=example.cell,
            attack=attack.attack,
            attack_options=attack.attack_options,
            round=example.round,
            client=example.client,
            example=number,
            rank=rank,
            total=total,
            value=value,
            certified=pairing.certified(number),
            original=content(truth, number, task),
            guess=None if missed else content(pairing.aligned, number, task),
            blind=blind,
        )


def content(examples: Examples, number: int, task: Task) -> bytes:
    """An image as a PNG file, a row of a table or a text in UTF-8.

    A row has a line for each column, ``name: value``; a text one space between words.
    """
    if task.modality == "text":
        return " ".join(examples.words[number].split()).encode()
    if examples.columns:
        inputs = examples.batch.inputs[number : number + 1].clamp(0, 1).flatten(1)
        values = decoded(examples.columns, inputs)[0].tolist()
        pairs = zip(examples.columns, values, strict=True)
        return "\n".join(f"{column.name}: {column.shown(v)}" for column, v in pairs).encode()
    return drawn(examples.batch.inputs[number], task)


def drawn(inputs: Tensor, task: Task) -> bytes:
    """A picture, or of a row of numbers a line for each column, in its owner's range."""
    if len(task.spec.owner_shape) != 1 or not isinstance(task, ImageClassification):
        return png(inputs)
    row = task.form.given(inputs[None]).flatten().tolist()
    lines = [f"column {place}: {value:.4g}" for place, value in enumerate(row[:_COLUMNS], 1)]
    more = [f"and {len(row) - _COLUMNS} more: "] if len(row) > _COLUMNS else []
    return "\n".join([*lines, *more]).encode()
