"""The page of a run, its tables and figures; what it says is held by a golden page."""

import csv
import json
import re
import shutil
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure as Canvas

from experiments.analysis.findings import Findings
from experiments.analysis.summary import summarise
from experiments.preview.manuals import first_sentence
from experiments.report.figures import frame_decibels
from experiments.report.page import write_report
from experiments.report.run_results import canonical, write_summary
from fedsim.errors import ConfigError, StoreError
from fedsim.metrics import METRICS
from fedsim.metrics.base import Metric
from fedsim.records import ScoreRow, UtilityRow
from fedsim.store.rows import read_rows, write_rows
from tests.experiments.report.cells import DEFENSES, cell_of
from tests.experiments.report.fixture_run import ATTACKS, HOSTILE, Page, make_run, scores
from tests.experiments.report.golden import GOLDEN, read


def judged_and_written(folder: Path) -> Path:
    return write_report(folder, write_summary(folder))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("report") / "quickstart")
    assert judged_and_written(folder) == folder / "report" / "index.html"
    return folder


@pytest.fixture(scope="module")
def judged(run: Path) -> tuple[Path, Findings]:
    """A copy of the run, and what its tables say."""
    folder = shutil.copytree(run, run.parent / "judged")
    return folder, write_summary(folder)


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return read(run)


def test_page_is_whole_and_needs_nothing_else(run: Path, page: Page) -> None:
    source = (run / "report" / "index.html").read_text("utf-8")
    assert page.open == []
    assert not {"link", "iframe", "object"} & {tag for tag, _ in page.tags}
    sources = [attrs.get("src") or attrs.get("href") for _, attrs in page.tags]
    assert all(s.startswith(("data:image/png;base64,", "#")) for s in sources if s)
    assert not re.search(r"url\((?!#)|@import", source)
    anchors = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    chapters = {"#1-cifar10-lenet-fedsgd", "#2-glue-cola-bert-base-uncased-fedavg"}
    assert anchors == chapters | {f"{chapter}-victims-1" for chapter in chapters}
    assert {f"#{attrs.get('id')}" for _, attrs in page.tags} >= anchors


def test_hostile_text_is_shown_and_never_run(run: Path) -> None:
    source = (run / "report" / "index.html").read_text("utf-8")
    text = " ".join(Page(source).text.split())
    assert f'1 failed: RuntimeError: {HOSTILE} | "bad"' in text  # entities are text again
    assert f"fedsim run quickstart --out {HOSTILE}" in text
    (script,) = re.findall(r"<script>(.*?)</script>", source, flags=re.DOTALL)
    assert source.count("<script") == 1
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'\">" in source  # no other script runs
    assert not re.search("innerHTML|insertAdjacent|eval|Function|fetch|document.write", script)


def test_the_page_reads_as_the_golden_one(page: Page) -> None:
    assert page.block == GOLDEN.read_text("utf-8"), "see tests/experiments/report/golden.py"


def test_the_page_is_short(page: Page) -> None:
    assert len(page.text.split()) <= 3000


def tables_of(path: Path) -> list[dict[str, list[list[str]]]]:
    """The header and rows of each table of a page, by its cells' text."""
    found = []
    for source in re.findall(r"<table.*?</table>", path.read_text("utf-8"), flags=re.DOTALL):
        rows = re.findall(r"<tr.*?</tr>", source, flags=re.DOTALL)
        cells = [re.findall(r"<t[hd].*?</t[hd]>", row, flags=re.DOTALL) for row in rows]
        plain = [[Page(cell).text.strip() for cell in row] for row in cells]
        found.append({"rows": plain})
    return found


def test_pooled_tables_hold_every_task(run: Path) -> None:
    folder = run / "report" / "tables"
    lines = list(csv.DictReader((folder / "defenses.csv").open(encoding="utf-8")))
    assert [(line["task"], line["defense"]) for line in lines] == [
        (task, defense)
        for task in ("image classification", "text classification")
        for defense in (
            "none",
            "freezing embeddings (position=true)",
            "Gaussian noise (std=0.01)",
        )
    ]
    assert {line["metric"] for line in lines} == {"PSNR", "ROUGE-L"}
    assert [line["utility change"] != "" for line in lines] == [False, True, True] * 2
    utility = list(csv.DictReader((folder / "utility.csv").open(encoding="utf-8")))
    assert {line["MCC"] == "" for line in utility if line["model"] == "lenet"} == {True}
    assert {line["MCC"] == "" for line in utility if line["model"] != "lenet"} == {False}


def test_victims_stand_side_by_side(run: Path, page: Page) -> None:
    shown = [t["rows"] for t in tables_of(run / "report" / "index.html") if "true" in t["rows"][0]]
    assert len(shown) == 3 + 1  # three images, and all texts in one table
    for rows in shown:
        assert len(rows[0]) == 1 + len(DEFENSES)
        assert rows[0][1].startswith("no defense")
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 3 * (1 + len(DEFENSES))
    marks = {attrs["class"] for tag, attrs in page.tags if tag == "mark"}
    assert marks == {"run", "word"}


def test_private_content_is_in_the_gallery_alone(run: Path) -> None:
    for path in [run / "summary.json", *(run / "report" / "tables").iterdir()]:
        assert "Okafor" not in path.read_text("utf-8")
    redacted = shutil.copytree(run, run.parent / "redacted")
    stale = redacted / "redacted" / "tables" / "9-gone-headline.csv"
    stale.parent.mkdir(parents=True)
    stale.write_text("old")
    source = write_report(redacted, write_summary(redacted), redact=True).read_text("utf-8")
    assert "Okafor" not in source
    assert "data:image/png" not in source
    assert "without private examples" in source
    assert not stale.exists()  # an earlier report leaves nothing behind


def test_the_tables_and_figures_of_a_run(run: Path) -> None:
    tables = {path.name for path in (run / "report" / "tables").iterdir()}
    kinds = ("defenses", "leakage", "rounds", "utility", "problems", "coverage")
    assert tables == {f"{kind}.csv" for kind in kinds}
    stems = ("1-cifar10-lenet-fedsgd", "2-glue-cola-bert-base-uncased-fedavg")
    figures = {path.name for path in (run / "report" / "figures").iterdir()}
    assert figures == {f"{stem}-rounds-1.{end}" for stem in stems for end in ("svg", "png")}


def test_summary_has_the_same_bytes_whatever_the_order(run: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "shuffled", shuffle=True)
    cells = {
        f"{task}.{defense[0]}": cell_of(task, defense) for task in ATTACKS for defense in DEFENSES
    }
    rows = [replace(row, seconds=99.0) for row in read_rows(folder / "scores.parquet", ScoreRow)]
    findings = summarise(rows, read_rows(folder / "utility.parquet", UtilityRow), cells)
    assert canonical(findings) == (run / "summary.json").read_bytes()
    assert json.loads(canonical(findings))["sections"][0]["victims"] == 6


def test_a_run_without_attacks_still_has_its_utility(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "training")
    write_rows(folder / "scores.parquet", ScoreRow, [])
    lines = Page(judged_and_written(folder).read_text("utf-8")).lines
    assert "Gaussian noise (std=0.01) | 3 | 1 | 0.200 | 2.20 | 0.200 | 740,472" in lines


@pytest.mark.parametrize(
    ("name", "fault"),
    [("scores", ": nothing is scored."), ("utility", "/utility.parquet: the file is missing.")],
)
def test_a_missing_file_is_named_by_what_judges(name: str, fault: str, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / f"{name}.parquet").unlink()
    with pytest.raises(StoreError, match=re.escape(f"{folder}{fault}")):
        write_summary(folder)


@pytest.mark.parametrize(
    "name",
    [
        *("coverage.parquet", "gallery/examples.parquet"),
        "provenance.json",
    ],
)
def test_a_missing_file_is_named_by_the_report(
    name: str, judged: tuple[Path, Findings], tmp_path: Path
) -> None:
    run, findings = judged
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / name).unlink()
    with pytest.raises(StoreError, match=re.escape(f"{folder / name}: the file is missing.")):
        write_report(folder, findings)


def test_a_missing_cell_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    lost = folder / "text-classification.none" / "cell.json"
    lost.unlink()
    with pytest.raises(StoreError, match=re.escape(f"{lost}: the file is missing.")):
        write_summary(folder)


def test_a_cut_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "scores.parquet"
    write_rows(path, ScoreRow, list(scores("image-classification")))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(StoreError, match=re.escape(f"{path}: not a table of ScoreRow (")):
        read_rows(path, ScoreRow)


def test_a_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.parquet"
    pq.write_table(pa.table({"run": ["a"]}), path)
    with pytest.raises(StoreError, match=re.escape(f"{path}: not a table of ScoreRow (")):
        read_rows(path, ScoreRow)


def test_an_unknown_metric_is_named() -> None:
    task = "image-classification"
    row = replace(next(scores(task)), metric="semsim")
    with pytest.raises(ConfigError, match=r"scores\.parquet: the metric 'semsim' is not known"):
        summarise([row], [], {row.cell: cell_of(task, DEFENSES[0])})


@pytest.mark.parametrize("kind", METRICS.values(), ids=METRICS)
def test_a_short_definition_ends_where_its_paragraph_does(kind: type[Metric]) -> None:
    said = first_sentence(kind)
    assert said.endswith(".")
    assert not re.search(r"al\.$|\n", said)
    assert said.count("(") == said.count(")")


def test_the_cap_of_psnr_does_not_flatten_the_scale() -> None:
    axes = Canvas().add_subplot()
    axes.plot([1, 2, 3], [12, 25, 100])
    frame_decibels(axes)
    low, middle, cap = (axes.transData.transform((1, y))[1] for y in (12, 25, 100))
    assert middle - low > 0.2 * (cap - low)
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == "exact"
