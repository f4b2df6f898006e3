"""Scores and sections as the stages would write them."""

from dataclasses import replace
from typing import Any

from experiments.analysis.findings import TaskFindings
from experiments.analysis.summary import summarise
from fedsim.config.cell import CaptureConfig, CellConfig, ServerKnows, TaskConfig
from fedsim.config.federation import FederationConfig
from fedsim.records import ScoreRow, UtilityRow

ROW = ScoreRow(
    run="r",
    cell="c0",
    seed=0,
    task="image-classification",
    model="lenet",
    dataset="shapes",
    split="train",
    protocol="fedsgd",
    batch_size=1,
    local_steps=1,
    defense="none",
    defense_options="{}",
    attack="dlg",
    attack_options='{"steps":300}',
    adaptive=False,
    control="none",
    round=1,
    client=0,
    probe="none",
    example=0,
    metric="psnr",
    value=10.0,
    unit="dB",
    status="done",
    reason="",
    objective=None,
    certified=None,
    level=None,
    seconds=2.0,
)


USE = UtilityRow(
    run="r",
    cell="c0",
    seed=0,
    defense="none",
    defense_options="{}",
    round=0,
    metric="accuracy",
    value=0.5,
    epsilon=None,
    bytes_up=100,
    seconds=1.0,
)


def cell(seed: int = 0, batch_size: int = 1, **knows: bool) -> CellConfig:
    return CellConfig(
        seed=seed,
        task=TaskConfig(model="lenet", dataset="shapes"),
        auxiliary=None,
        federation=FederationConfig(batch_size=batch_size),
        capture=CaptureConfig(),
        server_knows=ServerKnows(**knows),
        defense=(),
    )


def row(**changes: Any) -> ScoreRow:
    return replace(ROW, **changes)


def use(**changes: Any) -> UtilityRow:
    return UtilityRow(**{**USE.model_dump(), **changes})


def only_section(rows: list[ScoreRow], utility: list[UtilityRow] | None = None) -> TaskFindings:
    cells = {"c0": cell(0), "c1": cell(1), "c2": cell(0, batch_size=4)}
    used = {r.cell for r in rows} | {u.cell for u in utility or []}
    findings = summarise(rows, utility or [], {name: cells[name] for name in sorted(used)})
    (section,) = findings.sections
    return section
