"""The folder of a run, read: its cells, tables, ledger and findings."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedsim.api.cell import StoredCell
from fedsim.config.toml_source import read_toml
from fedsim.errors import ConfigError, StoreError
from fedsim.store.files import SCHEMA, Record, digest, read_bytes, read_json, read_record
from fedsim.store.plain_files import check_folder

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.api.findings import Findings
    from fedsim.api.ledger import Forming, LedgerRow
    from fedsim.records import ScoreRow, UtilityRow


R = TypeVar("R")
D = TypeVar("D", bound=Record)


@dataclass(frozen=True)
class RunFolder:
    """Where a run lies, and what its files hold: read, and checked, each time it is asked for.

    Attributes:
        root: the folder.
    """

    root: Path

    @property
    def name(self) -> str:
        """Name of the folder; that of the captures where these hold the run."""
        whole = self.root.resolve()
        captures = (whole.parent / "run.json").exists()
        return whole.parent.name if captures else whole.name

    @property
    def page(self) -> Path:
        """The page of the report, which need not be there."""
        return self.root / "report" / "index.html"

    def rows(self, name: str, kind: type[R]) -> list[R]:
        """The rows of ``<name>.parquet``.

        Raises:
            StoreError: the file is missing or altered, or its columns are not those of ``kind``.
        """
        from fedsim.store.rows import read_rows

        return read_rows(self.root / f"{name}.parquet", kind)

    def record(self, name: str, kind: type[D]) -> D | None:
        """The record in a file of the run; None without the file.

        Raises:
            StoreError: it was altered.
        """
        path = self.root / name
        return read_record(path, kind) if path.exists() else None

    @property
    def scores(self) -> list[ScoreRow]:
        """A row for each attack, control, private example and metric.

        Raises:
            StoreError: the run is not scored, or the table was altered.
        """
        self._check_scored()
        return self._scored("scores")

    @property
    def utility(self) -> list[UtilityRow]:
        """A row for each round and measure of utility; raises as ``scores`` does."""
        from fedsim.records import UtilityRow

        self._check_scored()
        return self.rows("utility", UtilityRow)

    @property
    def membership(self) -> list[ScoreRow]:
        """Scores of the attacks that infer membership; none without such attacks."""
        return self._scored("membership") if (self.root / "membership.parquet").exists() else []

    def _scored(self, name: str) -> list[ScoreRow]:
        from fedsim.records import ScoreRow

        return self.rows(name, ScoreRow)

    def _check_scored(self) -> None:
        if not (self.root / "scores.parquet").exists():
            raise StoreError(f"{self.root}: nothing is scored. {continuation(self.root)}")

    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """``scores`` and ``utility`` as data frames, a column for each field."""
        from fedsim.records import ScoreRow, UtilityRow
        from fedsim.store.rows import frame_of

        return frame_of(self.scores, ScoreRow), frame_of(self.utility, UtilityRow)

    @property
    def provenance(self) -> dict[str, Any]:
        """What each stage noted: commits, commands, machine, seconds; raises ``StoreError``."""
        return read_provenance(self.root)

    @property
    def ledger(self) -> list[LedgerRow]:
        """A row for each attack and capture that came so far; none before the attack stage."""
        from fedsim.api.ledger import read_ledger

        path = self.root / "jobs.sqlite"
        return read_ledger(path) if path.exists() else []

    @property
    def working(self) -> bool:
        """Whether a command is at work on the run."""
        from fedsim.api.ledger import locked

        return locked(self.root / "jobs.sqlite")

    @property
    def forming(self) -> dict[str, Forming]:
        """The running jobs by the name of their first capture; none when no command is at work."""
        from fedsim.api.ledger import read_live

        return read_live(self.root)

    @property
    def findings(self) -> Findings:
        """What the report concluded: systems, attacks, words, persons, privacy, utility, risks.

        Raises:
            StoreError: the run has no report, or ``findings.json`` was altered.
        """
        from fedsim.api.findings import Findings

        findings = self.record("findings.json", Findings)
        if findings is None:
            raise StoreError(f"{self.root}: not reported. {to_report(self.root)}")
        return findings


@dataclass(frozen=True)
class Run(RunFolder):
    """A run by its folder alone: what it holds, whatever made it.

    ``fedsim.api`` imports neither torch nor pandas before tensors or tables are asked for.

    Example:
        >>> from fedsim.api import Run
        >>> run = Run.open("runs/quickstart")  # doctest: +SKIP
        >>> for finding in run.findings.conclusions:  # doctest: +SKIP
        ...     print(finding.defense, finding.word, finding.statement)
    """

    experiment: dict[str, Any]

    @classmethod
    def open(cls, root: Path | str) -> Run:
        """Open a folder.

        Raises:
            ConfigError: as ``check_version``.
        """
        return cls(Path(root), check_version(Path(root)))

    @cached_property
    def cells(self) -> tuple[StoredCell, ...]:
        """The cells by their name; those whose simulation has begun, at least."""
        return tuple(StoredCell(path.parent) for path in sorted(self.root.glob("*/cell.json")))


def check_whole(path: Path) -> None:
    """Compare the experiment with its hash in the second line, which older runs lack."""
    known, _, body = read_bytes(path).partition(b"\n")[2].partition(b"\n")
    if known.startswith(b"sha256") and known.decode() != f'sha256 = "{digest(body)}"':
        raise StoreError(
            f"{path}: cut or altered, and other captures would be made. Restore it, or run the "
            "changed experiment with another --out."
        )


def check_version(root: Path) -> dict[str, Any]:
    """The parsed ``experiment.toml`` without its hash and schema number, which must be ours.

    Raises:
        ConfigError: there is none, it is of another version, or ``check_folder`` refuses the run.
    """
    path = root / "experiment.toml"
    if not os.path.lexists(path):
        if not root.exists():
            raise ConfigError(f"{root}: there is no such folder. Correct the path.")
        if not root.is_dir():
            raise ConfigError(f"{root}: is a file, and no run folder. Correct the path.")
        if next(root.glob("round-*/client-*.json"), None):
            raise ConfigError(
                f"{root}: holds captures of another application, and no experiment. Attack them by "
                f"fedsim attack {root}, or make an experiment of them by fedsim init {root}."
            )
        if (root / "run.json").is_file():
            raise ConfigError(
                f"{root}: an application began to capture here, and no client's reply could be "
                "kept. The application's log says whether clients replied."
            )
        raise ConfigError(
            f"{root}: no run folder (experiment.toml is missing), no captures and no state dicts "
            "(before.pt, site-1.pt). Correct the path."
        )
    check_folder(root)
    table = read_toml(path)
    schema = table.pop("schema", None)
    table.pop("sha256", None)
    if type(schema) is not int or schema != SCHEMA:  # in Python, true equals 1
        raise ConfigError(
            f"{root}: a run folder of version {schema!r}, and this fedsim reads version {SCHEMA}. "
            "Use the fedsim that wrote it, or run the experiment again with another --out."
        )
    return table


def read_provenance(root: Path) -> dict[str, Any]:
    """What ``note_provenance`` wrote.

    Raises:
        StoreError: the file is missing or holds something else.
    """
    path = root / "provenance.json"
    known = read_json(path)
    seal = known.pop("seal", None)  # older runs have none
    tables = [known.get(key, {}) for key in ("commands", "commits", "devices", "seconds", "jobs")]
    if not all(isinstance(table, dict) for table in tables) or not all(
        isinstance(seconds, float) for seconds in known.get("seconds", {}).values()
    ):
        raise StoreError(f"{path}: not a provenance. Restore or delete the file.")
    if seal not in (None, seal_of(known)):
        raise StoreError(f"{path}: cut or altered. Restore or delete the file.")
    return known


def seal_of(table: dict[str, Any]) -> str:
    """Hash of a provenance."""
    return digest(json.dumps(table, sort_keys=True).encode())


def continuation(root: Path) -> str:
    """What finishes a run, and what shows how far it got if there is something to show.

    A sentence each. Scores need every cell trained and some guess; what is not attacked yet is
    counted on their page as partial.

    Args:
        root: its folder.
    """
    if (root.resolve().parent / "run.json").exists():  # another application's, which has no stages
        stage = "score" if any(root.glob("*/guesses/*/*.json")) else "attack"
        truth = " --truth FOLDER, if the private examples are known" if stage == "score" else ""
        return f"Run fedsim {stage} {root.parent}{truth}."
    cells = [path.parent for path in root.glob("*/cell.json")]
    trained = all((cell / "simulation.json").exists() for cell in cells)
    going_on = f"Run fedsim run {root} to finish it."
    if not (trained and any(root.glob("*/guesses/*/*.json"))):
        return going_on
    return f"{going_on} To see how far it got: fedsim score {root} && fedsim report {root}."


def to_report(root: Path) -> str:
    """What makes the report of a run that has none: of its scores, or of all that is left."""
    if (root / "scores.parquet").exists():
        return f"Run fedsim report {root} first."
    return continuation(root)
