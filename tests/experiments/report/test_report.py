from __future__ import annotations

import csv
import json
import random
import re
import shutil
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from matplotlib.figure import Figure as Canvas

from experiments.analysis.findings import Findings
from experiments.analysis.summary import summarise
from experiments.report.figures import frame_decibels
from experiments.report.footer import summary
from experiments.report.report import PAGES, write_report
from experiments.report.summary_file import canonical, write_summary
from experiments.stages.coverage import Coverage, coverage
from experiments.stages.gallery import Shown, ranks, write_gallery
from experiments.stages.png import png
from experiments.stages.signals import SignalRow
from experiments.stages.updates import UpdateRow
from fedsim.errors import ConfigError, StoreError
from fedsim.files import write_json
from fedsim.metrics import METRICS
from fedsim.metrics.base import Metric
from fedsim.records import ScoreRow, UtilityRow
from fedsim.rows import read_rows, write_rows
from tests.experiments.report.cells import CLIENTS, DEFENSES, ROUNDS, cell_of

HOSTILE = "<script>alert('x')</script>"
FROZEN = "embedding_rows needs the gradient of the word embeddings, which the client does not send."
BROKEN = f'RuntimeError: {HOSTILE} | "bad"'
ATTACKS = {
    "image-classification": ("dlg", "inverting", "prior_only"),
    "text-classification": ("embedding_rows", "lamp", "prior_only"),
}
METRICS_OF = {
    "image-classification": ("mse", "psnr", "ssim", "label_accuracy"),
    "text-classification": (
        *("rouge1", "rouge2", "rougeL", "rouge1_special", "bleu"),
        *("exact_match", "batch_token_precision", "batch_token_recall", "token_accuracy"),
    ),
}
SENTENCES = [
    "Mary Okafor met the surgeon in Leiden on the 4th of March to discuss the second biopsy",
    "the bridge at Kaunas will stay closed until the last inspection has been signed",
    "nobody but Tomas had the key to the green cabinet in the archive",
    "the letter that she wrote to the bank in Porto was never answered",
    "they moved the meeting with the lawyer to a small room behind the station",
]


def options_of(defense: tuple[str, dict[str, Any]]) -> str:
    """As ``Chain.options_json`` writes them; no defense is an empty chain."""
    name, options = defense
    return json.dumps([] if name == "none" else [{"name": name, **options}], sort_keys=True)


def value_of(metric: str, attack: str, defense: str, round_: int, rng: random.Random) -> float:
    strength = {"none": 0.95, "gaussian_noise": 0.45, "freeze_embeddings": 0.35}[defense]
    strength = 0.12 if attack == "prior_only" else max(0.1, strength - 0.09 * (round_ - 1))
    noisy = min(1.0, max(0.0, rng.gauss(strength, 0.08)))
    if metric == "mse":
        return 0.08 * (1 - noisy) ** 2
    if metric == "psnr":
        return 8 + 30 * noisy
    if metric in {"exact_match", "label_accuracy"}:
        return float(noisy > 0.9)
    return 100 * noisy if metric == "bleu" else noisy


def status_of(task: str, attack: str, defense: str, round_: int, client: int) -> tuple[str, str]:
    if attack == "embedding_rows" and defense == "freeze_embeddings":
        return "skipped", FROZEN
    if (attack, defense, round_, client) == ("dlg", "gaussian_noise", 2, 1):
        return "failed", BROKEN
    if (attack, defense, round_, client) == ("lamp", "none", 3, 0):
        return "timeout", "the job was given 600 s."
    return "done", ""


def scores(task: str) -> Iterator[ScoreRow]:
    rng = random.Random(f"scores {task}")
    for defense in DEFENSES:
        config = cell_of(task, defense)
        for attack in ATTACKS[task]:
            for control in ("none",) if attack == "prior_only" else ("none", "other_client"):
                seen = "prior_only" if control == "other_client" else attack
                for round_ in range(1, ROUNDS + 1):
                    for client in range(CLIENTS):
                        status, reason = status_of(task, attack, defense[0], round_, client)
                        for example in range(2):
                            for metric in METRICS_OF[task]:
                                value = value_of(metric, seen, defense[0], round_, rng)
                                yield ScoreRow(
                                    run="quickstart",
                                    cell=f"{task}.{defense[0]}",
                                    seed=0,
                                    task=task,
                                    model=config.task.model,
                                    dataset=config.task.dataset,
                                    split=config.task.split,
                                    protocol=config.federation.protocol,
                                    batch_size=2,
                                    local_steps=1,
                                    defense=defense[0],
                                    defense_options=options_of(defense),
                                    attack=attack,
                                    attack_options='{"steps":300}',
                                    adaptive=attack == "lamp",
                                    control=control,
                                    round=round_,
                                    client=client,
                                    probe="none",
                                    example=example,
                                    row=2 * client + example,
                                    metric=metric,
                                    value=None if status == "skipped" else value,
                                    unit=METRICS[metric].unit,
                                    status=status,
                                    reason=reason,
                                    objective=None,
                                    certified=None,
                                    level=None,
                                    seconds=1.5,
                                )


def utilities(task: str) -> Iterator[UtilityRow]:
    names = ("loss", "accuracy") if task.startswith("image") else ("loss", "accuracy", "mcc")
    for i, defense in enumerate(DEFENSES):
        for round_ in range(ROUNDS + 1):
            gain = 0.1 * round_ / (1 + i)
            for metric in names:
                yield UtilityRow(
                    run="quickstart",
                    cell=f"{task}.{defense[0]}",
                    seed=0,
                    defense=defense[0],
                    defense_options=options_of(defense),
                    round=round_,
                    metric=metric,
                    value=2.3 - gain if metric == "loss" else 0.1 + gain,
                    epsilon=None,
                    bytes_up=0 if round_ == 0 else 61_706 * 4 * CLIENTS,
                    seconds=0.5,
                )


def picture(seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    small = torch.rand(1, 3, 5, 5, generator=rng)
    return torch.nn.functional.interpolate(small, size=(32, 32), mode="bicubic")[0].clamp(0, 1)


def examples() -> Iterator[Shown]:
    rng = random.Random("examples")
    for task, attacks in ATTACKS.items():
        for defense, _ in DEFENSES:
            for attack in attacks[:-1]:  # the prior is not shown
                for rank in ranks(9, 5 if task.startswith("image") else 3):
                    number = rank - 1
                    round_, client = 1 + number // 3, number % 3
                    if status_of(task, attack, defense, round_, client)[0] == "skipped":
                        continue
                    psnr = value_of("psnr", attack, defense, round_, rng)
                    known = (psnr - 8) / 30
                    if task.startswith("image"):
                        image = picture(number)
                        noise = torch.Generator().manual_seed(number)
                        mixed = image * known + torch.rand(3, 32, 32, generator=noise) * (1 - known)
                        original, guess = png(image), png(mixed)
                    else:
                        text = SENTENCES[number % 5] + " " + HOSTILE
                        words = [w if rng.random() < known else "the" for w in text.split()]
                        original, guess = text.encode(), " ".join(words).encode()
                    yield Shown(
                        cell=f"{task}.{defense}",
                        attack=attack,
                        attack_options='{"steps":300}',
                        round=round_,
                        client=client,
                        example=0,
                        rank=rank,
                        total=9,
                        value=psnr if task.startswith("image") else known,
                        original=original,
                        guess=None if (attack, rank) == ("lamp", 9) else guess,
                        certified=known > 0.8 if attack == "embedding_rows" else None,
                    )


def make_run(folder: Path, *, shuffle: bool = False) -> Path:
    folder.mkdir(parents=True)
    rows = [row for task in ATTACKS for row in scores(task)]
    utility = [row for task in ATTACKS for row in utilities(task)]
    if shuffle:
        random.Random(1).shuffle(rows)
        random.Random(2).shuffle(utility)
    write_rows(folder / "scores.parquet", ScoreRow, rows)
    write_rows(folder / "utility.parquet", UtilityRow, utility)
    write_rows(folder / "coverage.parquet", Coverage, coverage(rows))
    norms = [
        UpdateRow(cell=cell, round=round_, client=client, norm=3.0 / round_)
        for cell in sorted({row.cell for row in rows})
        for round_ in range(1, ROUNDS + 1)
        for client in range(CLIENTS)
    ]
    write_gallery(folder, list(examples()))
    write_rows(folder / "updates.parquet", UpdateRow, norms)
    write_rows(folder / "signals.parquet", SignalRow, [])
    for task in ATTACKS:
        for defense in DEFENSES:
            write_json(folder / f"{task}.{defense[0]}" / "cell.json", cell_of(task, defense))
    provenance = {
        "fedsim": "0.1.0",
        "packages": {"torch": "2.9.0", "flwr": "1.41.0"},
        "cpus": 2,
        "seconds": {"simulate": 12.5, "attack": 61.2},
        "commands": {"simulate": f"fedsim run quickstart --out {HOSTILE}"},
        "commits": {"simulate": "4f2a9c1d0b7e"},
    }
    write_json(folder / "provenance.json", provenance)
    (folder / "experiment.toml").write_text(
        f'schema = 1\nname = "quickstart"  # {HOSTILE}\nseeds = [0]\n'
    )
    return folder


class Page(HTMLParser):
    """Tags, attributes and text of a page, and whether every element is closed."""

    VOID = frozenset({"meta", "img", "br", "path", "use", "rect"})
    UNSEEN = frozenset({"title", "style", "script"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "br":
            self.text += " "

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag not in {"a", "b", "code", "mark", "span"}:
            self.text += " "

    def handle_data(self, data: str) -> None:
        if not self.UNSEEN & set(self.open):
            self.text += data


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
    return Page((run / "report" / "index.html").read_text("utf-8"))


@pytest.fixture(scope="module")
def full(run: Path) -> Path:
    """The same run with every table and guess on its page."""
    folder = shutil.copytree(run, run.parent / "full")
    write_report(folder, write_summary(folder), full=True)
    return folder


@pytest.fixture(scope="module")
def full_page(full: Path) -> Page:
    return Page((full / "report" / "full.html").read_text("utf-8"))


@pytest.mark.parametrize("kind", ["run", "full"])
def test_page_is_whole_and_needs_nothing_else(kind: str, request: pytest.FixtureRequest) -> None:
    source = (request.getfixturevalue(kind) / "report" / PAGES[kind == "full"]).read_text("utf-8")
    page = Page(source)
    assert page.open == []
    assert not {"link", "iframe", "object"} & {tag for tag, _ in page.tags}
    sources = [attrs.get("src") or attrs.get("href") for _, attrs in page.tags]
    assert all(s.startswith(("data:image/png;base64,", "#")) for s in sources if s)
    assert not re.search(r"url\((?!#)|@import", source)
    anchors = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    chapters = {"#1-cifar10-lenet-fedsgd", "#2-glue-cola-bert-base-uncased-fedavg"}
    assert anchors == chapters | {f"{chapter}-victims-1" for chapter in chapters}
    assert {f"#{attrs.get('id')}" for _, attrs in page.tags} >= anchors


@pytest.mark.parametrize("kind", ["run", "full"])
def test_hostile_text_is_shown_and_never_run(kind: str, request: pytest.FixtureRequest) -> None:
    source = (request.getfixturevalue(kind) / "report" / PAGES[kind == "full"]).read_text("utf-8")
    text = " ".join(Page(source).text.split())
    assert f'1 failed: RuntimeError: {HOSTILE} | "bad"' in text  # entities are text again
    assert f"fedsim run quickstart --out {HOSTILE}" in text
    (script,) = re.findall(r"<script>(.*?)</script>", source, flags=re.DOTALL)
    assert source.count("<script") == 1
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'\">" in source  # no other script runs
    assert not re.search("innerHTML|insertAdjacent|eval|Function|fetch|document.write", script)


def test_page_says_all_that_a_reader_has_to_know(page: Page) -> None:
    text = " ".join(page.text.split())
    for said in (
        "Who attacked An honest-but-curious server, which follows the protocol",
        "It was not told the token count of each example. It ran 4 attacks: DLG, "
        "Inverting Gradients, embedding rows and LAMP.",
        "Image classification: uoft-cs/cifar10, lenet, FedSGD: an eavesdropper recovers",
        "Which defense holds No defense was shown to hold.",
        "How sure Each verdict rests on 18 victims of 3 clients, in one training per defense.",
        "Fewer than 5 clients can show that examples came back exactly",
        "Without a defense images",
        "Victims ranked by PSNR under no defense.",
        "most leaked, 1 of 9",
        "least leaked, 9 of 9",
        "The server was told which classes occur among the client's examples",
        "Out of scope Malicious servers",
        "freezing embeddings (position=true)",
        "3 clients are too few for an interval of a mean, but of scores that all hit or miss.",
        "LAMP (adaptive)",
        f"9 skipped: {FROZEN}",
        "1 unfinished",
        "Wall time of each stage, including resumed work: simulate 12 s, attack 61 s, on 2 CPUs",
        "10 log10(1 / mse) of each image, in decibels",
        "fedsim report --full writes full.html beside it",
        "Run started not noted fedsim 0.1.0 Commit 4f2a9c1d0b7e Read by Date Signature",
        "fedsim limits, then fedsim report, adds how far any attack can get",
        "packages flwr 1.41.0, torch 2.9.0",
    ):
        assert said in text
    assert "ε" not in text  # no defense here spends any, so nothing has to explain it
    assert "Best of portfolio" not in text


def test_the_default_page_is_short(run: Path, page: Page, full_page: Page) -> None:
    tables = sorted(path.name for path in (run / "report" / "tables").iterdir())
    assert len(tables) <= 12
    assert tables == [
        *("defenses.csv", "jobs.csv", "leakage.csv"),
        *("problems.csv", "rounds.csv", "utility.csv"),
    ]
    words = len(page.text.split())
    assert words <= 3000
    assert len(full_page.text.split()) > 2 * words
    widths = [
        len(table["rows"][0])
        for table in tables_of(run / "report" / "index.html")
        if "verdict" in table["rows"][0]
    ]
    assert widths == [8, 8]


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


def test_full_adds_every_number(full_page: Page) -> None:
    text = " ".join(full_page.text.split())
    for said in (
        "6 private examples of 3 clients",
        "Gaussian noise (std=0.01) · at the end, round 3: accuracy 0.200, loss 2.20",
        "freezing embeddings (position=true) head=false, position=true, word=true",
        "8 done 1 failed",
        "8 done 1 unfinished",
        "↳ other client's update",
        "prior only",
        "Best of portfolio",
        "overlap of single words. The ROUGE F measure (Lin 2004)",
        "packages.torch 2.9.0",
        'name = "quickstart"',
    ):
        assert said in text


def test_no_defense_is_what_the_others_are_compared_with(full: Path) -> None:
    tables = full / "report" / "tables"
    stem = "1-cifar10-lenet-fedsgd"
    matrix = list(csv.DictReader((tables / f"{stem}-matrix.csv").open(encoding="utf-8")))
    assert [line["change to none"] != "" for line in matrix] == [False, True, True]
    for kind in ("against-none", "at-loss"):
        assert len((tables / f"{stem}-{kind}.csv").read_text("utf-8").splitlines()) == 3


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


def test_full_shows_what_every_attack_made_of_them(full_page: Page) -> None:
    tags = full_page.tags
    strips = [attrs for tag, attrs in tags if tag == "div" and attrs.get("class") == "strip"]
    assert len(strips) == 2 * len(DEFENSES)  # the prior has no strip
    images = [attrs for tag, attrs in tags if tag == "img"]
    assert len(images) == 2 * 5 * len(strips) + 3 * (1 + len(DEFENSES))
    assert "no guess" in full_page.text
    assert "9 of 9" in full_page.text


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
    assert "written without private examples" in source
    assert not stale.exists()  # an earlier report leaves nothing behind


def test_files_in_full(run: Path, full: Path) -> None:
    stems = ("1-cifar10-lenet-fedsgd", "2-glue-cola-bert-base-uncased-fedavg")
    kinds = (
        *("matrix", "against-none", "adaptive", "certified", "null-calls"),
        *("at-loss", "equal-utility", "trend", "coverage"),
        *("headline", "leakage", "rounds", "utility", "jobs", "problems"),
    )
    pooled = {path.name for path in (run / "report" / "tables").iterdir()}
    tables = {path.name for path in (full / "report" / "tables").iterdir()}
    ends = ("csv", "md", "tex")
    each = {f"{stem}-{kind}.{end}" for stem in stems for kind in kinds for end in ends}
    assert tables == each | pooled
    brief = [f"{stem}-rounds-1" for stem in stems]
    brief += [f"{stem}-coverage-{n}" for stem in stems for n in (1, 2)]
    more = [f"{stems[1]}-rounds-1-exact-match", *(f"{stem}-pareto-1" for stem in stems)]
    for folder, names in ((run, brief), (full, brief + more)):
        figures = {path.name for path in (folder / "report" / "figures").iterdir()}
        assert figures == {f"{name}.{end}" for name in names for end in ("svg", "png")}


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
    text = " ".join(Page(judged_and_written(folder).read_text("utf-8")).text.split())
    assert "Training without attacks: nyu-mll/glue:cola, bert-base-uncased, FedAvg" in text
    assert "No attack was run." in text
    assert "Gaussian noise (std=0.01) 3 1 0.200 2.20 0.200 740,472" in text
    assert "No victim was scored, so nothing is known." in text


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
        *("coverage.parquet", "updates.parquet", "signals.parquet", "gallery/examples.parquet"),
        *("provenance.json", "experiment.toml"),
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


def test_full_is_written_beside_the_page(run: Path, full: Path) -> None:
    page = (full / "report" / "index.html").read_text("utf-8")
    assert page == (run / "report" / "index.html").read_text("utf-8").replace(
        "quickstart: what", "full: what"
    )


@pytest.mark.parametrize("kind", METRICS.values(), ids=METRICS)
def test_a_short_definition_ends_where_its_paragraph_does(kind: type[Metric]) -> None:
    said = summary(kind)
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
