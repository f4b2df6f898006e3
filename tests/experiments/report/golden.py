"""The golden page: ``python -m tests.experiments.report.golden`` writes it anew, to be read."""

import tempfile
from pathlib import Path

from experiments.report.page import write_report
from experiments.report.run_results import write_summary
from tests.experiments.report.fixture_run import Page, make_run

GOLDEN = Path(__file__).with_name("golden.txt")


def read(run: Path) -> Page:
    """The page of a reported run."""
    return Page((run / "report" / "index.html").read_text("utf-8"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        run = make_run(Path(place) / "quickstart")
        write_report(run, write_summary(run))
        GOLDEN.write_text(read(run).block, "utf-8")
