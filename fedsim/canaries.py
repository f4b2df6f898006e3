"""Canaries: made-up gradients in random directions, which tell how much an update gives away."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError
from torch import Tensor
from torch.utils.data import Dataset

from fedsim.config.build import explain
from fedsim.errors import ConfigError, StoreError
from fedsim.seeds import generator, numpy_generator
from fedsim.store.files import Record, Sealed, read_record, write_json
from fedsim.store.plain_files import make_private, read_plain
from fedsim.types import Tensors

LOUD = 10.0
"""Norm of a canary in clipping norms: a defense that does not clip each one is found out."""
_QUIET = 0.01
"""The same of a client without one. Twice or half of it would still be lost in any noise."""
_PLANTED = "planted"


@dataclass(frozen=True)
class Canaries:
    """Orthogonal unit vectors in random directions (Andrew et al. 2024, "one-shot").

    Each takes the coordinates of one block of a random partition, with random signs. Against
    isotropic noise these are as good as any other directions. Being exactly orthogonal, one canary
    does not disturb the score of another, and all of them together need the memory of one gradient.

    Attributes:
        shapes: of the tensors that the client sends, in their order.
        block: number of the canary that a coordinate belongs to, ``(coordinate,)``.
        sign: 1 or -1, ``(coordinate,)``.
    """

    shapes: dict[str, torch.Size]
    block: Tensor
    sign: Tensor

    @classmethod
    def draw(cls, shapes: dict[str, torch.Size], count: int, rng: torch.Generator) -> Canaries:
        """Draw ``count`` canaries.

        Raises:
            ValueError: there are fewer coordinates than canaries.
        """
        size = sum(prod(shape) for shape in shapes.values())
        if count > size:
            raise ValueError(f"{count} canaries do not fit into {size} coordinates")
        block = torch.randperm(size, generator=rng) % count
        sign = torch.randint(0, 2, (size,), generator=rng) * 2.0 - 1
        return cls(shapes, block, sign)

    @cached_property
    def _sizes(self) -> Tensor:
        return torch.bincount(self.block)

    @cached_property
    def _places(self) -> tuple[Tensor, ...]:
        return tuple(torch.split(self.block.argsort(), self._sizes.tolist()))

    def gradient(self, canary: int, norm: float) -> Tensors:
        """One canary of this norm, as a gradient."""
        flat, places = torch.zeros(len(self.block)), self._places[canary]
        flat[places] = self.sign[places] * norm / len(places) ** 0.5
        return self._named(flat)

    def spot(self, canary: int, norm: float) -> Tensors:
        """The same in the first of its coordinates alone, so that it survives rounding."""
        flat, place = torch.zeros(len(self.block)), self._places[canary][0]
        flat[place] = self.sign[place] * norm
        return self._named(flat)

    def _named(self, flat: Tensor) -> Tensors:
        parts = flat.split([prod(shape) for shape in self.shapes.values()])
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def products(self, update: Tensors) -> Tensor:
        """Inner product of each canary with an update, float64 ``(canary,)``."""
        flat = torch.cat([update[name].flatten() for name in self.shapes]).double()
        totals = torch.zeros(len(self._sizes), dtype=torch.float64)
        totals.index_add_(0, self.block, flat * self.sign)
        return totals / self._sizes.sqrt()


def turn(release: int) -> float:
    """Sign of all canaries in a release, from 1: it alternates, so that what all share cancels."""
    return 1.0 if release % 2 else -1.0


class CanaryPlan(Record):
    """``canaries.json`` of a folder of canaries.

    Attributes:
        unit: what stands in for what: a client's whole ``update``, or an ``example``.
        clip: the clipping norm that the client states.
        count: number of canaries: of clients, or of examples of a client.
        seed: from which directions and coins are drawn.
    """

    unit: Literal["update", "example"]
    clip: float = Field(gt=0)
    count: int = Field(ge=2, le=1_000_000)
    seed: int = Field(ge=0)

    @property
    def coins(self) -> list[bool]:
        """Which canaries take part."""
        rng = numpy_generator(self.seed, "coins")
        return [bool(coin) for coin in rng.random(self.count) < 0.5]

    def directions(self, shapes: Mapping[str, torch.Size]) -> Canaries:
        """The canaries over tensors of these shapes, in whatever order they come.

        Raises:
            ConfigError: there are more than coordinates.
        """
        size = sum(map(torch.Size.numel, shapes.values()))
        if self.count > size:
            raise ConfigError(
                f"canaries: {self.count} do not fit into the {size} coordinates that are sent. "
                "Plant fewer."
            )
        return _drawn(tuple(sorted(shapes.items())), self.count, self.seed)


@lru_cache(maxsize=2)
def _drawn(shapes: tuple[tuple[str, torch.Size], ...], count: int, seed: int) -> Canaries:
    return Canaries.draw(dict(shapes), count, generator(seed, "directions"))


class Holder(Sealed):
    """The client that has a canary; a cut name would leave it out of the audit."""

    client: str


@dataclass(frozen=True)
class Planting:
    """A folder of canaries, of its owner alone: it says which of them took part.

    - ``canaries.json``: the ``CanaryPlan``.
    - ``clients/000003``: the ``Holder`` of the canary 3; they are taken in order.
    - ``planted``: a line for each of these files, which tells if one is gone.
    - ``releases.json`` and ``scores.f64``, for examples: how many rows there are and the expected
      size of a batch; by release, the score of every canary.
    """

    root: Path
    plan: CanaryPlan

    @classmethod
    def make(
        cls, folder: Path | str, unit: Literal["update", "example"], clip: float, count: int
    ) -> Planting:
        """A new folder, or the same one once more.

        Raises:
            ConfigError: a value cannot be, or the folder holds other canaries.
        """
        root = Path(folder).absolute()
        path = root / "canaries.json"
        if not path.exists():
            try:
                plan = CanaryPlan(unit=unit, clip=clip, count=count, seed=secrets.randbits(32))
            except ValidationError as error:
                raise ConfigError(explain(error, "canaries")) from None
            make_private(root)
            with suppress(FileExistsError), path.open("x") as file:  # by another client meanwhile
                file.write(plan.model_dump_json())
        planting = cls.open(root)
        if (planting.plan.unit, planting.plan.clip, planting.plan.count) != (unit, clip, count):
            raise ConfigError(f"{root}: holds other canaries. Name another folder.")
        return planting

    @classmethod
    def open(cls, folder: Path) -> Planting:
        """The canaries in a folder.

        Raises:
            StoreError: there are none.
        """
        return cls(folder, read_record(folder / "canaries.json", CanaryPlan))

    def number(self, client: str) -> int:
        """The canary of a client, the next free one where it has none yet.

        Raises:
            ConfigError: all are taken.
        """
        folder, mine = self.root / "clients", Holder(client=client).sealed().model_dump_json()
        folder.mkdir(exist_ok=True)
        for number in range(self.plan.count):
            path = folder / f"{number:06d}"
            with suppress(FileExistsError), path.open("x") as file:
                file.write(mine)
                with (self.root / _PLANTED).open("a") as planted:
                    planted.write(f"{number}\n")
                return number
            if path.read_bytes() == mine.encode():
                return number
        raise ConfigError(
            f"{self.root}: has canaries for {self.plan.count} clients, and here is another. "
            "Plant as many as there are clients."
        )

    def numbers(self) -> dict[str, int]:
        """Client -> its canary.

        Raises:
            StoreError: a client's file is missing, cut or altered.
        """
        numbers, planted = dict[str, int](), self.root / _PLANTED
        there = len(list((self.root / "clients").glob("*")))
        if there and not planted.is_file():
            raise StoreError(f"{planted}: missing. Run the test again with a new folder.")
        noted = len(set(read_plain(planted).splitlines())) if planted.is_file() else 0
        for number in range(max(there, noted)):
            path = self.root / "clients" / f"{number:06d}"
            try:
                numbers[read_record(path, Holder).client] = number
            except StoreError:
                raise StoreError(
                    f"{path}: missing, cut or altered, and a canary must not be left out. Restore "
                    "the file, or run the test again with a new folder of canaries."
                ) from None
        return numbers

    def update(self, sent: Tensors, client: str, round_: int) -> Tensors:
        """What a client replies: a canary added to the weights that it was sent, or hardly any.

        Args:
            sent: the weights that the client was sent; whole numbers are returned as they are.
            client: its name in the captures.
            round_: number of the round, from 1.
        """
        number, sign = self.number(client), turn(round_) * self.plan.clip
        floats = {name: value for name, value in sent.items() if value.is_floating_point()}
        directions = self.plan.directions({name: value.shape for name, value in floats.items()})
        if self.plan.coins[number]:
            canary = directions.gradient(number, sign * LOUD)
        else:  # not quite nothing: Flower's clipping divides by the norm of an update
            canary = directions.spot(number, sign * _QUIET)
        return {**sent, **{k: v + canary[k].to(v.dtype) for k, v in floats.items()}}


def canary_update(
    sent: Tensors, folder: Path | str, *, clip: float, clients: int, client: str, round_: int = 1
) -> Tensors:
    """What a client of any framework replies in a test of its claim, in place of what it learned.

    Args:
        sent: the weights that it was sent, by name.
        folder: where to note the coins, the same for all clients.
        clip: the clipping norm that the clients state.
        clients: how many there are at most.
        client: its name, as that of its file in a folder of state dicts.
        round_: number of the round, from 1.

    Returns:
        The weights that were sent, to which a canary of ten clipping norms is added if a coin says
        so: a client's own code clips and covers them.

    Raises:
        ConfigError: a value cannot be, or the folder holds other canaries.

    Example:
        >>> import tempfile, torch
        >>> from fedsim.canaries import canary_update
        >>> sent = {"weight": torch.zeros(64)}
        >>> reply = canary_update(sent, tempfile.mkdtemp(), clip=1.0, clients=8, client="site-1")
        >>> round(float(reply["weight"].norm())) in (0, 10)
        True
    """
    return Planting.make(folder, "update", clip, clients).update(sent, client, round_)


class CanaryRows(Dataset[Any]):
    """A data set with further rows, and gradients in random directions in their place.

    A coin for each canary decides whether it is a row. Its row is a copy of the first one, drawn by
    the loop's own sampler; before the optimiser clips, its gradient becomes the canary's, ten
    clipping norms long. After each step the inner products of all canaries with the released
    gradient are noted. ``fedsim audit FOLDER --claim ...`` reads them.

    Args:
        rows: the data set.
        folder: a new folder for the notes; readable by its owner alone.
        clip: the clipping norm, ``max_grad_norm``.
        count: number of canaries, at most one for each coordinate of the gradient.

    Raises:
        ConfigError: a value cannot be, or the folder is in use.

    Example:
        >>> import fedsim, tempfile, torch
        >>> from torch.utils.data import TensorDataset
        >>> rows = TensorDataset(torch.rand(100, 4), torch.zeros(100))
        >>> planted = fedsim.CanaryRows(rows, tempfile.mkdtemp(), clip=1.0, count=40)
        >>> 100 < len(planted) < 140
        True

        The loader takes ``planted``, and ``planted.watch(optimizer)`` is told Opacus' optimiser.
    """

    def __init__(self, rows: Any, folder: Path | str, clip: float, count: int) -> None:  # noqa: ANN401
        self._rows = rows
        self._planting = Planting.make(folder, "example", clip, count)
        self._planted = [number for number, coin in enumerate(self._planting.plan.coins) if coin]
        self._drawn: list[int | None] = []
        self._release = 0
        if self._scores.exists():
            raise ConfigError(f"{folder}: holds the scores of another run. Name a new folder.")

    @property
    def _scores(self) -> Path:
        return self._planting.root / "scores.f64"

    def __len__(self) -> int:
        return len(self._rows) + len(self._planted)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        index = int(index)
        number = index - len(self._rows)
        self._drawn.append(self._planted[number] if number >= 0 else None)
        return self._rows[index if number < 0 else 0]

    def watch(self, optimizer: Any) -> None:  # noqa: ANN401
        """Plant the canaries in the gradients of Opacus' ``DPOptimizer``, and note each release.

        The loader has to fetch in this process (``num_workers=0``), one batch for each call of
        ``optimizer.step``.
        """
        shapes = {str(i): parameter.shape for i, parameter in enumerate(optimizer.params)}
        canaries = self._planting.plan.directions(shapes)
        batch = float(optimizer.expected_batch_size)
        write_json(
            self._planting.root / "releases.json",
            {"rows": len(self._rows), "batch": batch},
        )
        clip_all, hook = optimizer.clip_and_accumulate, optimizer.step_hook

        def clip_and_accumulate() -> None:
            self._plant(optimizer, canaries)
            clip_all()

        def note(stepped: Any) -> None:  # noqa: ANN401
            if hook is not None:
                hook(stepped)
            self._note(stepped, canaries, batch if optimizer.loss_reduction == "mean" else 1.0)

        optimizer.clip_and_accumulate = clip_and_accumulate
        optimizer.attach_step_hook(note)

    def _plant(self, optimizer: Any, canaries: Canaries) -> None:  # noqa: ANN401
        """The canaries of the batch in place of the gradients of their rows."""
        norm = turn(self._release + 1) * LOUD * self._planting.plan.clip
        samples = [parameter.grad_sample for parameter in optimizer.params]
        if not all(isinstance(sample, torch.Tensor) for sample in samples):
            raise ConfigError(
                "canaries: a gradient was summed over several batches. Step once for each."
            )
        size = len(samples[0])
        # What was fetched before is no part of the batch: Opacus looks at a row for its shape.
        drawn, self._drawn = self._drawn[len(self._drawn) - size :], []
        if len(drawn) != size:
            raise ConfigError(
                "canaries: the batch has rows that were not fetched in this process. Load with "
                "num_workers=0, and step once for each batch."
            )
        for place, number in enumerate(drawn):
            if number is not None:
                canary = canaries.gradient(number, norm)
                for i, sample in enumerate(samples):
                    sample[place] = canary[str(i)].to(sample)

    def _note(self, optimizer: Any, canaries: Canaries, batch: float) -> None:  # noqa: ANN401
        self._release += 1
        gradients = {str(i): p.grad.detach().cpu() for i, p in enumerate(optimizer.params)}
        scores = canaries.products(gradients) * turn(self._release) * batch
        with self._scores.open("ab") as file:
            file.write((scores / self._planting.plan.clip).numpy().tobytes())
