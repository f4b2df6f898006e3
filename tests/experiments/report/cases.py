"""Sections and verdicts of a page."""

from collections.abc import Mapping
from typing import Any

from experiments.analysis.evidence import Clients, Reached, SectionEvidence, Verdict, Word
from experiments.analysis.findings import (
    Findings,
    Leakage,
    Problem,
    Result,
    RoundUtility,
    TaskFindings,
)
from experiments.analysis.statistics import Difference, Estimate, Share
from experiments.report.run_results import RunResults
from fedsim.config.cell import CellConfig
from fedsim.records import STATUSES, AttackKey, Modality


def results_of(cells: Mapping[str, CellConfig], **given: Any) -> RunResults:
    """What a run came to of which only the given is known."""
    rows = ("members", "coverage", "audits", "examples")
    nothing: dict[str, Any] = dict.fromkeys(rows, ())
    nothing |= {"name": "run", "provenance": {}, "partial": ""}
    nothing |= {"findings": Findings(sections=()), "limits": None, "budgets": {}, "foreign": False}
    return RunResults(**nothing | {"cells": cells} | given)


DLG = AttackKey(attack="dlg", attack_options="{}", adaptive=False)


ADAPTIVE = AttackKey(attack="lamp", attack_options="{}", adaptive=True)


NOISE = '[{"name":"gaussian_noise","stage":"client","std":0.01}]'


CLIENTS = 8


FROZEN = "the client does not send the head (frozen); the reply lacks it"
REFUSED = Problem(status="skipped", reason=f"dlg: {FROZEN}. Choose.", jobs=8, cause=FROZEN)


def estimate(mean: float) -> Estimate:
    return Estimate(n=8, clusters=8, mean=mean, low=mean - 1, high=mean + 1, interval_of="clients")


def over(low: float, high: float) -> Difference:
    mean = (low + high) / 2
    return Difference(
        n=8, clusters=8, mean=mean, low=low, high=high, interval_of="clients", level=0.95
    )


def clients(hit: int) -> Clients:
    return Clients(hit=hit, of=8, examples=hit, low=hit / 10, high=0.3123)


def rows_of(word: Word) -> Word:
    return "not decided" if word in ("labels leak", "members leak") else word


def verdict(word: Word, defense: str = "none", options: str = "[]", **given: Any) -> Verdict:
    ran = word != "not attacked"
    interval = {"leaks": over(2, 6), "no leak found": over(-1, 0.5)}.get(word, over(-3, 9))
    jobs = dict.fromkeys(STATUSES, 0) | ({"done": 8} if ran else {"skipped": 8})
    base: dict[str, Any] = {
        "setting": "",
        "defense": defense,
        "defense_options": options,
        "word": word,
        "rows": rows_of(word),
        "grade": {"leaks": "recognisable", "labels leak": "class only"}.get(word),
        "smallest": 1.0,
        "most": 0.5,
        "verbatim": clients(0),
        "exact": clients(0),
        "recovered": clients(6 if word == "leaks" else 0),
        "reasons": (),
        "members": None,
        "levels": (),
        "attacks": 1,
        "victims": 8 if ran else 0,
        "clients": CLIENTS if ran else 0,
        "jobs": jobs,
        "strongest": Reached(attacker=DLG, leakage=estimate(20), refused=0) if ran else None,
        "labels": None,
        "null": "prior_only" if ran else None,
        "nulls": {"prior_only": 12.0} if ran else {},
        "over_null": interval if ran else None,
        "beating": (DLG,) if word == "leaks" else (),
    }
    return Verdict(**(base | given))


def leakage(mean: float, share: float | None, unit: str = "dB") -> Leakage:
    part = Share(threshold=25, value=share, low=0, high=1) if share is not None else None
    return Leakage(**estimate(mean).model_dump(), median=mean, worst=mean, share=part, unit=unit)


def result(one: Verdict, main: str, share: float) -> Result:
    ran = one.word != "not attacked"
    found = {
        main: leakage(20, share),
        "label_accuracy": leakage(0.75, None, "1"),
        "batch_token_precision": leakage(0.5, None, "1"),
        "batch_token_recall": leakage(0.875, None, "1"),
    }
    return Result(
        setting=one.setting,
        defense=one.defense,
        defense_options=one.defense_options,
        cells=("cell",),
        attack="dlg",
        attack_options="{}",
        adaptive=False,
        control="none",
        probe="none",
        jobs=one.jobs,
        problems=() if ran else (REFUSED,),
        leakage=found if ran else {},
        rounds={},
    )


def utility(one: Verdict, by_seed: dict[int, float]) -> RoundUtility:
    return RoundUtility(
        setting=one.setting,
        defense=one.defense,
        defense_options=one.defense_options,
        round=1,
        values={"accuracy": sum(by_seed.values()) / len(by_seed)},
        by_seed={"accuracy": by_seed},
        spent=None,
        bytes_up=0,
    )


def section(
    *verdicts: Verdict,
    modality: Modality = "image",
    share: float = 0.75,
    seeds: dict[str, dict[int, float]] | None = None,
) -> TaskFindings:
    main = "psnr" if modality == "image" else "rougeL"
    none: dict[str, Any] = dict.fromkeys(("gaps", "certified"), ())
    return TaskFindings(
        cells=("cell",),
        task=f"{modality}-classification",
        dataset="shapes",
        model="lenet",
        protocol="fedsgd",
        modality=modality,
        victims=8,
        clients=CLIENTS,
        levels=(),
        results=tuple(result(verdict, main, share) for verdict in verdicts),
        utility=tuple(
            utility(verdict, (seeds or {})[verdict.defense]) for verdict in verdicts if seeds
        ),
        evidence=SectionEvidence(verdicts=verdicts, **none),
    )
