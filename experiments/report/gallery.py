"""Private examples beside what an attack made of them; only the page shows them."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from experiments.analysis.findings import TaskFindings
from experiments.report.naming import attack_label
from experiments.wording.defense_names import defense_name
from experiments.wording.names import title
from fedsim.capture import CaptureKey
from fedsim.records import PRIOR_ONLY

SHOWN = {"image": 5, "text": 3}
Mark: TypeAlias = Literal["missed", "word", "run"]


@dataclass(frozen=True, slots=True)
class Example:
    """One private example and the guess matched to it.

    Attributes:
        attack: the attack's name or label; the page groups by it and by its options.
        index: position in the client's batch.
        original: image ``(channel, height, width)``, uint8, or float in [0, 1]; or the words.
        guess: like ``original``; None where the job left no guess.
        metrics: metric name -> value.
        certified: whether the attack proves the guess; None where it says nothing.
        attack_options: canonical JSON, as in the rows.
    """

    cell: str
    attack: str
    key: CaptureKey
    index: int
    modality: Literal["image", "text"]
    original: Tensor | tuple[str, ...]
    guess: Tensor | tuple[str, ...] | None
    metrics: Mapping[str, float | None]
    certified: bool | None = None
    attack_options: str = "{}"

    @property
    def name(self) -> str:
        """Round, client and position, as in the rows."""
        return f"round {self.key.round}, client {self.key.client}, example {self.index}"


@dataclass(frozen=True, slots=True)
class Strip:
    """Examples of one attack in one place, from the most to the least leaked.

    Attributes:
        total: how many there are.
        chosen: those shown, with their ranks.
    """

    attack: str
    defense: str
    metric: str
    total: int
    chosen: list[tuple[int, Example]]


def strips(section: TaskFindings, examples: Sequence[Example]) -> list[Strip]:
    """One strip for each attack and place of the section, in its order; none for the prior."""
    places = {cell: result.place for result in section.results for cell in result.cells}
    groups: dict[tuple[int, str, str], list[Example]] = {}
    for example in examples:
        if example.cell in places and example.attack != PRIOR_ONLY:
            number = section.places.index(places[example.cell])
            groups.setdefault((number, example.attack, example.attack_options), []).append(example)
    count = SHOWN[section.modality]
    found = []
    for (number, attack, given), group in sorted(groups.items()):
        setting, defense, options = section.places[number]
        found.append(
            Strip(
                attack=_attack(section, attack, given),
                defense=defense_name(defense, options) + (f", {setting}" if setting else ""),
                metric=section.main,
                total=len(group),
                chosen=choose(group, section.main, count),
            )
        )
    return found


def _attack(section: TaskFindings, attack: str, options: str) -> str:
    """As the tables call it; by its bare name where no row has these options."""
    given = json.loads(options)
    for result in section.results:
        if (result.attack, json.loads(result.attack_options)) == (attack, given):
            return attack_label(section, result.attacker)
    return title(attack)


def choose(examples: Sequence[Example], metric: str, count: int) -> list[tuple[int, Example]]:
    """``(rank, example)`` from the most to the least leaked, evenly spaced over all ranks.

    With five these are the best, the quartiles and the worst, so that none is picked by hand. The
    higher the metric, the more leaked; an example without it ranks last. Ranks count from 1.
    """

    def leaked(example: Example) -> float:
        value = example.metrics.get(metric)
        return -math.inf if value is None or math.isnan(value) else value

    ranked = sorted(examples, key=lambda e: (-leaked(e), e.cell, e.key, e.index))
    if len(ranked) <= count:
        return list(enumerate(ranked, 1))
    places = [round(i * (len(ranked) - 1) / (count - 1)) for i in range(count)]
    return [(place + 1, ranked[place]) for place in places]


def data_uri(image: Tensor) -> str:
    """The image as a PNG data URI, pixel for pixel."""
    from PIL import Image

    pixels = image.detach().cpu()
    if pixels.is_floating_point():
        pixels = (pixels.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
    array = pixels.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def mark(original: Sequence[str], guess: Sequence[str]) -> list[tuple[Mark, str]]:
    """The original cut into runs of words that the guess holds in order, single words, and misses.

    Greedy string tiling (Wise 1993) with case ignored: the longest common run is taken first, and
    each word of the guess accounts for one word of the original.
    """
    left = [word.casefold() for word in original]
    right: list[str | None] = [word.casefold() for word in guess]
    marks: list[Mark] = ["missed"] * len(left)
    starts: set[int] = set()
    while True:
        length, i, j = _longest_run(left, right, marks)
        if length == 0:
            break
        marks[i : i + length] = ["run" if length > 1 else "word"] * length
        right[j : j + length] = [None] * length
        starts.add(i)
    pieces: list[tuple[Mark, str]] = []
    for i, (kind, word) in enumerate(zip(marks, original, strict=True)):
        if pieces and pieces[-1][0] == kind and kind != "word" and i not in starts:
            pieces[-1] = (kind, f"{pieces[-1][1]} {word}")
        else:
            pieces.append((kind, word))
    return pieces


def _longest_run(
    left: Sequence[str], right: Sequence[str | None], marks: Sequence[Mark]
) -> tuple[int, int, int]:
    """Length and starts of the longest common run of words that no run has taken yet."""
    best = (0, 0, 0)
    ending = [0] * (len(right) + 1)
    for i, word in enumerate(left):
        row = [0] * (len(right) + 1)
        for j, other in enumerate(right):
            if marks[i] == "missed" and word == other:
                row[j + 1] = ending[j] + 1
                if row[j + 1] > best[0]:
                    best = (row[j + 1], i - row[j + 1] + 1, j - row[j + 1] + 1)
        ending = row
    return best
