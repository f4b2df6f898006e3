"""``fedsim audit``: who took part in the updates, and what a claimed epsilon is worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from experiments.commands.captures import captures_of, is_captures
from experiments.commands.parameters import Attacked, Json
from experiments.invocation import Invocation
from fedsim.errors import ConfigError
from fedsim.visible import say

if TYPE_CHECKING:
    from experiments.bounds.claimed import ClaimVerdict, Released


def audit(
    experiment: Attacked,
    canaries: Annotated[
        int | None,
        typer.Option(help="planted gradients per cell", show_default="what half of epsilon takes"),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(help="foreign clients: epsilon=8, delta=1e-5, and noise=, rate=, releases="),
    ] = None,
    planted: Annotated[
        Path | None, typer.Option(help="foreign captures: folder that canary_mod wrote")
    ] = None,
    released: Annotated[
        Literal["replies", "models"],
        typer.Option(help="foreign captures: what is covered by noise"),
    ] = "replies",
    confidence: Annotated[
        float | None,
        typer.Option(min=0.5, max=0.99999, help="--claim: level of all bounds together, or .95"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure inferred membership, and epsilon from below by canary gradients.

    Exit code 1 says that a measured lower bound on epsilon exceeds the accountant's upper bound, or
    what is claimed of clients that are not fedsim's.
    """
    folder = Path(experiment)
    if is_captures(experiment) or (folder / "canaries.json").exists():
        verdict = _claimed(folder, claim, planted, released, confidence)
        say(json.dumps(verdict.table()) if as_json else verdict.text())
        raise typer.Exit(int(verdict.refuted))
    for option, value in (("--claim", claim), ("--confidence", confidence)):
        if value is not None:
            raise ConfigError(
                f"{option}: is for captures of other clients, and {experiment!r} is none. Leave it "
                "out."
            )
    run = Invocation(experiment).run(())
    from experiments.analysis.membership import inferred
    from experiments.bounds.audit import audit as plant
    from experiments.report.assessment import FINDINGS, write_findings
    from experiments.report.run_results import write_summary
    from experiments.wording.names import settings

    configs = {cell.name: cell.config for cell in run.cells}
    labels = settings(configs, {cell.name: cell.experiment.name for cell in run.cells})
    findings = inferred(run.membership, labels, configs)
    measured = plant(run, canaries)
    if (run.root / FINDINGS).exists():  # its cards of privacy hold what an audit measured
        write_findings(run, write_summary(run.root).sections)
    if as_json:
        members = [finding.model_dump() for finding in findings]
        epsilon = measured.model_dump(mode="json", exclude={"seal"})
        say(json.dumps({"membership": members, "epsilon": epsilon}))
    else:
        say("\n".join([*(finding.text() for finding in findings), measured.text()]))
    raise typer.Exit(1 if measured.refuted else 0)


def _claimed(
    folder: Path,
    claim: str | None,
    planted: Path | None,
    released: Released,
    confidence: float | None,
) -> ClaimVerdict:
    """A claim beside canaries in clients that are not fedsim's."""
    from experiments.bounds.claimed import (
        CONFIDENCE,
        Stated,
        judged,
        trial_of_captures,
        trial_of_rows,
    )

    level = CONFIDENCE if confidence is None else confidence
    if claim is None:
        raise ConfigError(
            f'{folder}: say what is claimed of its clients: --claim "epsilon=8, delta=1e-5".'
        )
    stated = Stated.parse(claim)
    if (folder / "canaries.json").exists():
        trial = trial_of_rows(folder)
        return judged(trial, stated, "steps", "the gradient of every step", level)
    if planted is None:
        raise ConfigError(
            f"{folder}: the canaries are needed. Plant them by fedsim.canary_mod in a test "
            "federation, and pass its folder: --planted FOLDER."
        )
    trial = trial_of_captures(captures_of(folder), planted, released)
    seen = "every reply" if released == "replies" else "the model after every round"
    return judged(trial, stated, "rounds", seen, level)
