"""The folder of one cell, read: its config, captures, truth, training and guesses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.config.cell import CellConfig
from fedsim.store.files import read_record

if TYPE_CHECKING:  # these import torch
    from fedsim.api.guesses import StoredGuess
    from fedsim.api.victims import Victims
    from fedsim.records import JobRecord, SimulationRecord, UtilityPoint
    from fedsim.store.capture import CaptureStore
    from fedsim.store.truth import TruthStore


@dataclass(frozen=True)
class CellFolder:
    """One simulation and the attacks on it, on the disk.

    Attributes:
        folder: inside the run folder.
    """

    folder: Path

    @property
    def name(self) -> str:
        """Name of the folder: experiment, defense and a hash of the resolved config."""
        return self.folder.name

    @property
    def captures(self) -> CaptureStore:
        """The captures: what the server saw."""
        from fedsim.store.capture import CaptureStore

        return CaptureStore(self.folder / "captures")

    @property
    def truth(self) -> TruthStore:
        """The private data behind the captures, which the server did not see."""
        from fedsim.store.truth import TruthStore

        return TruthStore(self.folder / "truth")

    @property
    def simulated(self) -> bool:
        """True once the training has ended."""
        return (self.folder / "simulation.json").exists()

    @property
    def simulation(self) -> SimulationRecord:
        """What the training left.

        Raises:
            StoreError: it has not ended, or its record was altered.
        """
        from fedsim.records import SimulationRecord

        return read_record(self.folder / "simulation.json", SimulationRecord)

    @property
    def utility(self) -> tuple[UtilityPoint, ...]:
        """The utility so far: of all rounds once the training has ended, none before it began."""
        from fedsim.records import TRAINING, TrainingRecord

        if self.simulated:
            return self.simulation.utility
        path = self.folder / TRAINING
        return read_record(path, TrainingRecord).utility if path.exists() else ()

    def guess_folder(self, label: str) -> Path:
        """Where the guesses and records of one attack lie."""
        return self.folder / "guesses" / label


@dataclass(frozen=True)
class StoredCell(CellFolder):
    """A cell as ``Run.cells`` lists it.

    Nothing is read before it is asked for, and torch is imported with the first tensors.
    """

    @cached_property
    def config(self) -> CellConfig:
        """Everything that determines the captures.

        Raises:
            StoreError: ``cell.json`` was altered.
        """
        return read_record(self.folder / "cell.json", CellConfig)

    @property
    def attacks(self) -> tuple[str, ...]:
        """Labels of the attacks that left guesses or records, and of the controls."""
        return tuple(sorted(path.name for path in (self.folder / "guesses").glob("*/")))

    @cached_property
    def victims(self) -> Victims[StoredCell]:
        """The captures with the private examples that they are about."""
        from fedsim.api.victims import Victims

        return Victims(self)

    def guesses(self, label: str) -> list[StoredGuess]:
        """What one attack left of each capture, by round and client."""
        from fedsim.api.guesses import read_guess

        return [read_guess(self.victims, label, key) for key in self.victims.keys]

    def jobs(self, label: str) -> list[JobRecord]:
        """The record of each capture's job under one attack, by round and client."""
        from fedsim.api.guesses import read_record_of

        return [read_record_of(self.victims, label, key)[1] for key in self.victims.keys]
