"""What an eavesdropper writes about the model beside the captures, so that they can be attacked."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from inspect import signature
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from fedsim.config.build import suggest
from fedsim.errors import ConfigError
from fedsim.store.capture import CaptureStore
from fedsim.store.files import save_tensors

if TYPE_CHECKING:  # which import torch; without a model a server captures by numpy alone
    from fedsim.tasks.base import Task
    from fedsim.tasks.given import Model


class Description:
    """The model of the application as its owner describes it.

    Args:
        model: as in ``fedsim.tasks.given.task_of``; None to write nothing.
        options: the other arguments of ``task_of``.
        say: prints a line.

    Raises:
        ConfigError: the description is incomplete or contradicts itself.
    """

    def __init__(
        self, model: Model | None, options: Mapping[str, Any], say: Callable[[str], None]
    ) -> None:
        if model is not None or options:
            _check(model, options)
        self._model, self._options, self._say = model, options, say
        self._task: Task | None = None
        if model is not None and not isinstance(model, str):  # a name alone needs the tensors
            from fedsim.tasks.given import task_of

            self._task = task_of(model, **options)

    def write(self, sent: Mapping[str, npt.NDArray[Any]], folder: Path) -> None:
        """Once: write the task, match the first broadcast and say how; never raises."""
        model, self._model = self._model, None
        if model is None:
            return
        try:
            self._write(model, sent, folder)
        except Exception as error:  # whatever is wrong with a description, the training goes on
            self._say(f"attacks will ask for the model: {error}")

    def _write(self, model: Model, sent: Mapping[str, npt.NDArray[Any]], folder: Path) -> None:
        import torch
        from torch import nn

        from fedsim.tasks import save_task
        from fedsim.tasks.given import task_of
        from fedsim.tensor_names import lacks, named, weights_of

        tensors = {name: torch.from_numpy(value.copy()) for name, value in sent.items()}
        shapes = {name: tuple(value.shape) for name, value in tensors.items()}
        task = self._task or task_of(model, arrays=shapes, **self._options)
        save_task(task, folder)
        network = task.blank()
        broadcast = named(tensors, network, "the broadcast", partial=True)
        lacking = lacks(broadcast, network)
        note = ""
        if lacking and isinstance(model, nn.Module):
            base = named(weights_of(model), network, "model").tensors
            save_tensors(folder / CaptureStore.BASE, {name: base[name] for name in lacking})
            note = f"; {len(lacking)} that never cross the wire are kept from model"
        elif lacking:
            note = f"; {len(lacking)} never cross the wire, and attacks will ask for them"
        self._say(f"the broadcast holds {broadcast.how}{note}")


def _check(model: Model | None, options: Mapping[str, Any]) -> None:
    from fedsim.tasks.given import task_of

    known = signature(task_of).parameters.keys() - {"model", "arrays"}
    for name in options:
        if name not in known:
            raise ConfigError(
                f"Eavesdropper: {name!r} is no option. {suggest(name, sorted(known))}"
            )
    if model is None and options:
        raise ConfigError(
            f"Eavesdropper: {', '.join(options)} without the model. Pass model=, too, or neither, "
            "and all of it to fedsim attack."
        )


def claim(asked: Path) -> Path:
    """A folder for one run alone: ``asked``, else ``asked-2``, ``asked-3`` and so on.

    Raises:
        OSError: the folder cannot be made.
    """
    for number in count(1):
        folder = asked if number == 1 else asked.with_name(f"{asked.name}-{number}")
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("round-*")):
            continue
        with contextlib.suppress(FileExistsError):
            started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            with (folder / "run.json").open("x") as file:
                json.dump({"started": started, "process": os.getpid()}, file)
            return folder
    raise AssertionError("unreachable")
