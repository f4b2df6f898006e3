"""The report of a run: one page that opens from disk, tables, figures and ``summary.json``."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from markupsafe import Markup

from experiments.figures import INK, Figure, curves
from experiments.findings import OTHER_CLIENT, PRIOR_ONLY, Findings, Place, Result, Section
from experiments.gallery import Example, Strip, data_uri, mark, strips
from experiments.labels import flatten, option, options, show, title
from experiments.results import STATUSES, attack_name, shown_metrics, tables, unit_of
from experiments.summary import metric_classes, summarise
from experiments.tables import Number, Table, text_of, write_table
from experiments.threat import ATTACKER, OUT_OF_SCOPE, ThreatModel, threat_model
from fedsim.cell import CellConfig
from fedsim.errors import StoreError
from fedsim.files import Record, read_record, write_bytes
from fedsim.metrics.base import Metric
from fedsim.records import ScoreRow, UtilityRow

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Chapter:
    """What the page says about one section."""

    anchor: str
    section: Section
    threat: ThreatModel
    tables: dict[str, Table]
    figures: list[Figure]
    strips: list[Strip]
    strongest: list[tuple[Result, Number, Number | None]]


def write_report(run: Path, examples: Sequence[Example], *, redact: bool = False) -> Path:
    """Write ``summary.json`` and ``report/`` of a run folder; returns the page.

    Args:
        run: the run folder.
        examples: every attacked example; the page shows some of them, chosen by rank. They appear
            nowhere else.
        redact: leave the gallery out, so that the page may be passed on.

    Raises:
        StoreError: a file of the run is missing or cannot be read.
    """
    footer = {
        "provenance": _provenance(run / "provenance.json"),
        "experiment": _text(run / "experiment.toml"),
    }
    rows = read_rows(run / "scores.parquet", ScoreRow)
    utility = read_rows(run / "utility.parquet", UtilityRow)
    cells = {
        name: read_record(run / name / "cell.json", CellConfig)
        for name in sorted({row.cell for row in rows} | {row.cell for row in utility})
    }
    summary = summarise(rows, utility, cells)
    write_bytes(run / "summary.json", canonical(summary))
    chapters = [
        _chapter(number, section, cells, () if redact else examples)
        for number, section in enumerate(summary.sections, 1)
    ]
    folder = run / "report"
    for part in ("tables", "figures"):  # what an earlier report left would look like ours
        shutil.rmtree(folder / part, ignore_errors=True)
    for chapter in chapters:
        for table in chapter.tables.values():
            write_table(table, folder / "tables")
        for figure in chapter.figures:
            write_bytes(folder / "figures" / f"{figure.name}.svg", figure.svg.encode())
            write_bytes(folder / "figures" / f"{figure.name}.png", figure.png)
    page = folder / "index.html"
    body = _render(rows, name=run.resolve().name, chapters=chapters, redact=redact, **footer)
    write_bytes(page, body.encode())
    return page


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """Read the rows of a Parquet file.

    Raises:
        StoreError: the file is missing, cut, or holds other columns.
    """
    import pyarrow
    import pyarrow.parquet
    from pydantic import ValidationError

    if not path.exists():
        raise StoreError(f"{path}: the file is missing. Run the stage before again.")
    try:
        return [kind.model_validate(row) for row in pyarrow.parquet.read_table(path).to_pylist()]
    except (pyarrow.ArrowInvalid, OSError, ValidationError) as error:
        what = str(error).splitlines()[0]
        raise StoreError(
            f"{path}: not a table of {kind.__name__} ({what}). Run the stage that wrote it again."
        ) from None


def canonical(summary: Findings) -> bytes:
    """Strict JSON with sorted keys: equal summaries give equal bytes."""
    data = json.loads(summary.model_dump_json())
    return (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def slug(text: str) -> str:
    """Lower-case letters, digits and hyphens: safe as a file name, a label and an anchor."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _chapter(
    number: int, section: Section, cells: dict[str, CellConfig], examples: Sequence[Example]
) -> Chapter:
    stem = slug(
        f"{number} {Path(section.dataset).name} {Path(section.model).name} {section.protocol}"
    )
    return Chapter(
        anchor=stem,
        section=section,
        threat=threat_model([cells[name] for name in section.cells]),
        tables=tables(section, stem),
        figures=curves(section, f"{stem}-rounds"),
        strips=strips(section, examples),
        strongest=_strongest(section),
    )


def _strongest(section: Section) -> list[tuple[Result, Number, Number | None]]:
    """For each defense the attack with the best mean of the main metric, and the prior's."""
    best: dict[Place, Result] = {}
    for result in section.results:
        if result.is_null or result.probe != "none" or section.main not in result.leakage:
            continue
        held = best.setdefault(result.place, result)
        if result.leakage[section.main].mean > held.leakage[section.main].mean:
            best[result.place] = result
    found = []
    for result in best.values():
        null = section.null(result, PRIOR_ONLY) or section.null(result, OTHER_CLIENT)
        floor = null.leakage.get(section.main) if null else None
        mean = result.leakage[section.main]
        found.append(
            (
                result,
                Number(mean.mean, mean.unit, mean.low, mean.high),
                Number(floor.mean, floor.unit) if floor else None,
            )
        )
    return found


def _render(rows: Sequence[ScoreRow], **values: object) -> str:
    """The page; ``values`` are the template's own."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    source, classes = files("experiments"), metric_classes()
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
        "attack_name": attack_name,
        "data_uri": data_uri,
        "inline": lambda figure: Markup(figure.svg.replace(INK, "currentColor")),
        "is_text": lambda value: isinstance(value, str),
        "text_of": text_of,
        "mark": mark,
        "metric_class": classes.get,
        "options": options,
        "shown_metrics": shown_metrics,
        "statuses": STATUSES,
        "show": show,
        "title": title,
        "unit_of": unit_of,
    }
    measured = {row.metric for row in rows}
    return environment.get_template("report.html.j2").render(
        attacker=ATTACKER,
        out_of_scope=OUT_OF_SCOPE,
        definitions=[
            (kind, _definition(kind)) for name, kind in classes.items() if name in measured
        ],
        attacks=sorted({(row.attack, row.attack_options) for row in rows}),
        **values,
    )


def _definition(metric: type[Metric]) -> str:
    """The docstrings of the metric and of the classes that it has its formula from."""
    texts = []
    for kind in metric.__mro__:
        texts.append(inspect.cleandoc(kind.__doc__ or "").replace("``", ""))
        if "score" in vars(kind):
            break
    return " ".join(texts)


def _provenance(path: Path) -> list[tuple[str, str]]:
    try:
        table = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise StoreError(f"{path}: not valid JSON ({error}). Restore the file.") from None
    return [(key, option(value)) for key, value in flatten(table).items()]


def _text(path: Path) -> str:
    if not path.exists():
        raise StoreError(f"{path}: the file is missing. Restore it, or simulate again.")
    return path.read_text("utf-8")
