"""Canary rows for a loop of DP-SGD by Opacus: drawn, clipped and covered by its own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from fedsim.canaries import LOUD, Canaries, Planting, turn
from fedsim.errors import ConfigError
from fedsim.files import write_json


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
