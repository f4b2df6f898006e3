"""A scored run as pandas frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.api.run import Run, to_report
from fedsim.errors import StoreError
from fedsim.store.files import read_record

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class RunFrames:
    """The tables of a run; their columns are the fields of ``fedsim.records``.

    Attributes:
        root: the run folder.
        scores: one row for each attack, private example and metric (``ScoreRow``), and for each
            control if asked for.
        utility: one row for each round and utility metric (``UtilityRow``).
    """

    root: Path
    scores: pd.DataFrame
    utility: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """The report's table of defenses, one row for each task, setting and defense.

        ``to_latex`` prints it; of a number's 95 % interval, ``low`` and ``high`` are columns.

        Raises:
            StoreError: the run has no report.
        """
        import pandas as pd

        path = self.root / "report" / "tables" / "defenses.csv"
        if not path.is_file():
            raise StoreError(f"{path}: the file is missing. {to_report(self.root)}")
        return pd.read_csv(path).dropna(axis="columns", how="all")

    def plot_rounds(self, metric: str | None = None) -> Figure:
        """Leakage by round with its 95 % intervals, and utility below, as the report draws them.

        Args:
            metric: of leakage; the main one of each task if not given.

        Raises:
            StoreError: the run has no report, or the metric was not measured in two rounds or more.
        """
        from experiments.analysis.findings import Findings
        from experiments.report.curves import drawings
        from experiments.report.figures import together

        if not (self.root / "summary.json").is_file():
            raise StoreError(f"{self.root}: has no report. {to_report(self.root)}")
        curves = [
            (drawing.draw, drawing.size)
            for section in read_record(self.root / "summary.json", Findings).sections
            for drawing in drawings(section, metric or section.main)
        ]
        if not curves:
            raise StoreError(
                f"{self.root}: {metric or 'leakage'} was not measured in two rounds or more, so "
                "that there is no curve. Attack more rounds, or name another metric."
            )
        return together(curves)


def load(folder: Path | str, *, controls: bool = False) -> RunFrames:
    """Read the tables of a run folder.

    Args:
        folder: the run.
        controls: keep the scores of controls and of probes as well, which no mean of an attack may
            hold; see the columns ``control`` and ``probe``.

    Raises:
        StoreError: the run is not scored, or a table is cut or altered.
        ConfigError: the folder is no run, of another version, or ``check_folder`` refuses it.

    Example:
        >>> import fedsim
        >>> run = fedsim.load("runs/quickstart")  # doctest: +SKIP
        >>> print(run.table().to_latex())  # doctest: +SKIP
    """
    run = Run.open(folder)
    scores, utility = run.frames()
    if not controls:
        scores = scores[(scores.control == "none") & (scores.probe == "none")]
    return RunFrames(run.root, scores.reset_index(drop=True), utility)
