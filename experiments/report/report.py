"""The report of a run: one page that opens from disk, tables, figures and ``summary.json``."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from experiments.analysis.findings import Findings, TaskFindings
from experiments.analysis.summary import metric_classes, summarise
from experiments.preview.catalog import CATALOGS
from experiments.report.appendix import appendix
from experiments.report.curves import curves
from experiments.report.figures import INK, Figure
from experiments.report.footer import cost, definition, read_json, read_text
from experiments.report.gallery import Strip, data_uri, mark, strips, words
from experiments.report.heatmap import heatmaps
from experiments.report.naming import attack_label, attack_name, shown_metrics, unit_of
from experiments.report.pareto import pictures
from experiments.report.phrases import scope, told, trained
from experiments.report.recovered_rows import union_figures, union_table, unions
from experiments.report.result_tables import tables
from experiments.report.tables import Table, named, text_of, write_table
from experiments.report.tradeoff_tables import tradeoff_tables
from experiments.report.trend_table import trend
from experiments.report.verdict_tables import (
    null_of,
    number,
    reached,
    rule,
    told_labels,
    useful,
    verdict_tables,
)
from experiments.stages.coverage import Coverage
from experiments.stages.gallery import Shown, read_gallery
from experiments.stages.rows import read_rows
from experiments.stages.updates import UpdateRow
from experiments.wording.defense_names import defense_name, family, short_options
from experiments.wording.names import (
    flatten,
    natural,
    option,
    options,
    show,
    title,
    utility_unit,
)
from experiments.wording.threat import ATTACKER, OUT_OF_SCOPE, ThreatModel, threat_model
from fedsim.cell import CellConfig
from fedsim.files import read_record, write_bytes
from fedsim.records import PRIOR_ONLY, STATUSES, ScoreRow, UtilityRow


@dataclass(frozen=True, slots=True)
class Chapter:
    """What the page says about one section."""

    anchor: str
    section: TaskFindings
    threat: ThreatModel
    tables: dict[str, Table]
    pictures: list[Figure]
    heatmaps: list[Figure]
    figures: list[Figure]
    unions: list[Figure]
    strips: list[Strip]
    extras: dict[str, Table]

    @property
    def all_figures(self) -> list[Figure]:
        """Those of all kinds."""
        return [*self.pictures, *self.heatmaps, *self.figures, *self.unions]

    @property
    def all_tables(self) -> list[Table]:
        """Those of all kinds."""
        return [*self.tables.values(), *self.extras.values()]


def write_report(run: Path, *, redact: bool = False) -> Path:
    """Write ``summary.json`` and ``report/`` of a run folder; returns the page.

    Args:
        run: the run folder.
        redact: leave out the gallery, which alone shows private examples, to pass the page on.

    Raises:
        StoreError: a file of the run is missing or cannot be read.
    """
    provenance = read_json(run / "provenance.json")
    footer = {
        "provenance": [(key, option(value)) for key, value in flatten(provenance).items()],
        "cost": cost(provenance),
        "experiment": read_text(run / "experiment.toml"),
        "limited": (run / "limits.json").exists(),
    }
    rows = read_rows(run / "scores.parquet", ScoreRow)
    utility = read_rows(run / "utility.parquet", UtilityRow)
    cells = {
        name: read_record(run / name / "cell.json", CellConfig)
        for name in sorted({row.cell for row in rows} | {row.cell for row in utility})
    }
    coverage = read_rows(run / "coverage.parquet", Coverage)
    updates = read_rows(run / "updates.parquet", UpdateRow)
    summary = summarise(rows, utility, cells)
    write_bytes(run / "summary.json", canonical(summary))
    shown = [] if redact else read_gallery(run)
    chapters = [
        _chapter(number, section, run, cells, coverage, updates, shown)
        for number, section in enumerate(summary.sections, 1)
    ]
    folder = run / "report"
    for part in ("tables", "figures"):  # what an earlier report left would look like ours
        shutil.rmtree(folder / part, ignore_errors=True)
    for chapter in chapters:
        for table in chapter.all_tables:
            write_table(table, folder / "tables")
        for figure in chapter.all_figures:
            write_bytes(folder / "figures" / f"{figure.name}.svg", figure.svg.encode())
            write_bytes(folder / "figures" / f"{figure.name}.png", figure.png)
    page = folder / "index.html"
    body = _render(rows, name=run.resolve().name, chapters=chapters, redact=redact, **footer)
    write_bytes(page, body.encode())
    return page


def canonical(summary: Findings) -> bytes:
    """Strict JSON with sorted keys: equal summaries give equal bytes."""
    data = json.loads(summary.model_dump_json())
    return (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def slug(text: str) -> str:
    """Lower-case letters, digits and hyphens: safe as a file name, a label and an anchor."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _chapter(
    number: int,
    section: TaskFindings,
    run: Path,
    cells: dict[str, CellConfig],
    coverage: Sequence[Coverage],
    updates: Sequence[UpdateRow],
    examples: Sequence[Shown],
) -> Chapter:
    recovered = unions(section, coverage)
    mine = {name: cells[name] for name in section.cells}
    stem = slug(
        f"{number} {Path(section.dataset).name} {Path(section.model).name} {section.protocol}"
    )
    return Chapter(
        anchor=stem,
        section=section,
        threat=threat_model(list(mine.values())),
        tables=named(
            (
                *verdict_tables(section),
                *tradeoff_tables(section),
                *tables(section),
                trend(section, updates),
                union_table(section, recovered),
            ),
            stem,
        ),
        extras=appendix(run, mine, stem),
        pictures=pictures(section, f"{stem}-pareto"),
        heatmaps=heatmaps(section, mine, f"{stem}-sweep"),
        figures=curves(section, f"{stem}-rounds"),
        unions=union_figures(section, recovered, f"{stem}-coverage"),
        strips=strips(section, examples),
    )


def _render(rows: Sequence[ScoreRow], **values: object) -> str:
    """The page; ``values`` are the template's own."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    source, classes = files("experiments.report"), metric_classes()
    names = ("report.html.j2", "report.css")
    # Reconstructed text is hostile input: whatever is not marked safe here gets escaped.
    environment = Environment(
        loader=DictLoader({name: source.joinpath(name).read_text("utf-8") for name in names}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "attack_label": attack_label,
        "attack_name": attack_name,
        "null_of": null_of,
        "number": number,
        "reached": reached,
        "rule": rule,
        "useful": useful,
        "data_uri": data_uri,
        "inline": lambda figure: Markup(figure.svg.replace(INK, "currentColor")),
        "is_text": lambda value: isinstance(value, str),
        "text_of": text_of,
        "mark": mark,
        "words": words,
        "metric_class": classes.get,
        "defense_name": defense_name,
        "family": family,
        "options": options,
        "short_options": short_options,
        "shown_metrics": shown_metrics,
        "statuses": STATUSES,
        "scope": scope,
        "show": show,
        "told": told,
        "told_labels": told_labels,
        "trained": trained,
        "title": title,
        "unit_of": unit_of,
        "utility_unit": utility_unit,
    }
    measured = {row.metric for row in rows}
    attacked = {row.attack for row in rows} - {PRIOR_ONLY}
    return environment.get_template("report.html.j2").render(
        attacker=ATTACKER,
        out_of_scope=OUT_OF_SCOPE,
        definitions=[
            (kind, definition(kind)) for name, kind in classes.items() if name in measured
        ],
        attacks=sorted({(row.attack, row.attack_options) for row in rows}),
        said={
            name: text.replace("``", "")
            for name, text in CATALOGS["attacks"]().items()
            if name in attacked
        },
        defenses=sorted(
            {(defense_name(r.defense, r.defense_options), r.defense_options) for r in rows},
            key=lambda pair: natural(pair[0]),
        ),
        **values,
    )
