"""Attacks that misbehave on request, installed as a user's package is: by entry points."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch

from attacks.base import Attack, Grouping, Job, Reconstruction
from fedsim.errors import CannotAttack
from fedsim.knowledge import Fact
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

Act = Literal[
    "draw",
    "words",
    "raise",
    "cannot",
    "nan",
    "few",
    "expire",
    "refuse-late",
    "exit",
    "exit-once",
    "kill",
    "hold",
    "hang",
    "assert",
]


@dataclass(frozen=True)
class Fake(Attack):
    """Draws noise, after doing what ``act`` says if the client is ``since`` or later."""

    act: Act = "draw"
    since: int = 0
    folder: str = ""
    pause: float = 0.0

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        keys = "+".join(str(o.key) for o in observations)
        begin = time.time()
        first = not self._log("runs", keys).count(keys + " ") > 1
        if observations[-1].key.client >= self.since:
            self._misbehave(first, job)
        time.sleep(self.pause)
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._log("spans", f"{begin} {time.time()} {gpu} {job.device}\n")
        guesses = [self._draw(rng, job.prepared) for rng in rngs]
        return guesses[1:] if self.act == "few" else guesses

    def _misbehave(self, first: bool, job: Job) -> None:
        match self.act:
            case "raise":
                raise RuntimeError("singular\nmatrix")
            case "cannot":
                raise CannotAttack("the embedding is frozen", "Train it.")
            case "assert":
                raise torch.AcceleratorError("CUDA error: device-side assert triggered")
            case "exit":
                os._exit(3)
            case "exit-once" if first:
                os._exit(3)
            case "kill" if first:
                os.kill(os.getpid(), signal.SIGKILL)
            case "hold" if first:
                job.report(7, 0.5, "held")
                time.sleep(60)
            case "hang":
                time.sleep(60)
            case "expire":
                while not job.expired:
                    time.sleep(0.01)
            case "refuse-late":
                while not job.expired:
                    time.sleep(0.01)
                raise CannotAttack("no sentence lies in the span", "Give it more time.")

    def _draw(self, rng: torch.Generator, prepared: Tensors | None) -> Reconstruction:
        pixels = torch.rand(1, 1, 8, 8, generator=rng) / 2 + torch.rand(1, 1, 8, 8) / 2
        if prepared is not None:
            pixels = pixels + prepared["shift"]
        if self.act == "nan":
            pixels[0, 0, 0, 0] = torch.nan
        return Reconstruction(
            Batch(pixels, torch.tensor([1])),
            objective="low" if self.act == "words" else 0.25,  # type: ignore[arg-type]
            steps=900,
            confidence=("guess",),
            trace=tuple((step, step / 10, 1 / (1 + step)) for step in range(901)),
            expired=self.act == "expire",
        )

    def _log(self, name: str, line: str) -> str:
        """Append to a file of ``folder``; returns the whole of it."""
        if not self.folder:
            return ""
        path = Path(self.folder) / name
        with path.open("a") as file:
            file.write(line + " ")
        return path.read_text()


@dataclass(frozen=True)
class FakeWeights(Fake):
    """One job for the clients of a round."""

    grouping: ClassVar[Grouping] = "same_weights"


@dataclass(frozen=True)
class FakeClient(Fake):
    """One job for a client over the rounds, and only where the server knows the labels."""

    grouping: ClassVar[Grouping] = "same_client"
    requires: ClassVar[frozenset[Fact]] = frozenset({"labels"})


@dataclass(frozen=True)
class FakeLearner(Fake):
    """Learns a shift from the auxiliary rows first."""

    def prepare(self, observation: Observation, task: Task, job: Job, seed: int) -> Tensors:
        self._log("prepared", f"{observation.key} {observation.knowledge.labels}")
        rows = job.auxiliary()
        shift = torch.rand((), generator=torch.Generator().manual_seed(seed))
        return {"shift": shift * rows.inputs.mean(), "again": torch.zeros(2)}


@dataclass(frozen=True)
class FakePast(Fake):
    """Guesses how many rounds of a client it has seen so far, a hundredth for each."""

    over: bool = True

    @property
    def grouped_by(self) -> Grouping:
        return "same_client" if self.over else "same_weights"

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
    ) -> list[Reconstruction]:
        assert [o.key.round for o in observations] == sorted(o.key.round for o in observations)
        return [
            Reconstruction(Batch(torch.full((1, 1, 8, 8), seen / 100), torch.tensor([1])))
            for seen in range(1, len(observations) + 1)
        ]
