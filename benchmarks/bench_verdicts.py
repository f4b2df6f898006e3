"""How often the judge calls a leak where there is none, finds one, and covers by its bounds.

    python -m benchmarks.bench_verdicts --record

writes ``docs/results/verdicts.json``.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.verdict_draws import NONE, NULLS, Table, attack, noise, readable
from docs.measured import RESULTS, made_here
from experiments.analysis.evidence import Verdict
from experiments.analysis.frames import score_frame
from experiments.analysis.statistics import clopper_pearson
from experiments.analysis.verdicts import Evidence, judge, metrics
from experiments.plan.config import VerdictRule
from fedsim.process import one_thread
from fedsim.records import Modality
from fedsim.visible import say

_RUNS, READ = 400, "5 % readable"
_ATTACKS, _CLIENTS = (1, 5, 20), (4, 8, 16, 64)


def verdict(table: Table, attacks: int) -> Verdict:
    """The verdict on a table of undefended scores, whose attacks are known to work."""
    modality: Modality = "image" if "psnr" in table else "text"
    working = {attack(number): "" for number in range(attacks)}
    return judge(NONE, score_frame([], {}), table, modality, working=working)


def leaks(table: Table, attacks: int) -> bool:
    """Whether rows are said to leak."""
    modality: Modality = "image" if "psnr" in table else "text"
    working = {attack(number): "" for number in range(attacks)}
    here = {name: table.get(name, []) for name in metrics(modality)}
    known = Evidence(NONE, here, modality, VerdictRule(), {}, working)
    return known.grade is not None


def called(kind: str, clients: int, attacks: int, runs: int) -> int:
    """How many of these runs are called a leak of rows."""
    of = [sorted(NULLS).index(kind)] if kind in NULLS else []
    rng, draw = np.random.default_rng([clients, attacks, *of]), {**NULLS, READ: readable}[kind]
    return sum(leaks(draw(rng, clients, attacks), attacks) for _ in range(runs))


def covered(clients: int, runs: int) -> tuple[int, int, int]:
    """In how many runs the interval of the mean lead holds the true one, and the two bounds do.

    The true lead over another client's update is .5 dB, and a tenth of the clients is recognisable.
    """
    rng, mean, most, share = np.random.default_rng(clients), 0, 0, 0
    for _ in range(runs):
        table = noise(rng, clients, 1)
        psnr, shown = table["psnr"], rng.random(clients) < 0.1
        lifted = {
            victim: 26.0 if shown[victim.client] else value
            for victim, value in psnr[1].values.items()
        }
        of_mean = {victim: value + 0.5 for victim, value in psnr[1].values.items()}
        known = verdict({"psnr": [psnr[0], replace(psnr[1], values=of_mean), psnr[2]]}, 1)
        lead = known.over_null
        assert lead is not None
        low, high = lead.low or -np.inf, lead.high or np.inf
        mean += low <= 0.5 <= high
        most += known.most is not None and known.most >= 0.5
        recovered = verdict(
            {"psnr": [psnr[0], replace(psnr[1], values=lifted), psnr[2]]}, 1
        ).recovered
        share += recovered.high >= 0.1
    return mean, most, share


def rows(runs: int) -> Iterator[dict[str, Any]]:
    """Rows of the result file."""
    for kind in NULLS:
        for attacks in _ATTACKS:
            for clients in _CLIENTS:
                setting = {"scores": kind, "attacks": str(attacks), "clients": str(clients)}
                some = runs // 4 if "cut short" in kind else runs
                yield _row(setting, "called a leak", called(kind, clients, attacks, some), some)
    for attacks in _ATTACKS:
        setting = {"scores": READ, "attacks": str(attacks), "clients": "400"}
        yield _row(setting, "called a leak", called(READ, 400, attacks, runs // 4), runs // 4)
    for clients in (8, 16, 64):
        names = ("mean lead", "bound of the mean", "bound of the share")
        for name, count in zip(names, covered(clients, runs), strict=True):
            setting = {"scores": name, "attacks": "1", "clients": str(clients)}
            yield _row(setting, "covered", count, runs)


def _row(setting: dict[str, str], measure: str, count: int, runs: int) -> dict[str, Any]:
    low, high = clopper_pearson(count, runs)
    ends = {"low": round(low, 4), "high": round(high, 4)}
    return {
        "setting": setting,
        "measure": measure,
        "n": runs,
        "mean": count / runs,
        "unit": "of n",
        **ends,
    }


def recorded(known: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The result file."""
    return {
        "title": "Verdicts on simulated scores: level, power and coverage",
        "paper": "",
        "command": "python -m benchmarks.bench_verdicts",
        **made_here(seconds),
        "columns": {
            "lines": ["scores", "attacks"],
            "across": "clients",
            "digits": {"called a leak": 3, "covered": 3},
        },
        "rows": list(known),
        "notes": [
            "n: runs. Attacks that read no row are called a leak of rows where chance is; with "
            "scores that hit or miss the rate has steps, and is often far below the level.",
            "Lists: each guess is right with a chance of .02. The class: it is read, and its mean "
            "image returned, 1.25 dB better than the mean of all; labels leak, rows do not. 5 % "
            "readable: the image of every twentieth of 400 clients is 8 dB better, under one "
            "attack of those that are run.",
            "Cut short: 70 % of guesses, but 30 % of null ones, are of a class 3 dB better.",
            "Covered: the interval of the mean lead holds the true .5 dB; the bound that is "
            "printed beside no leak found is at least that; and the bound on the share of "
            "clients with a recognisable example is at least the true tenth.",
        ],
        "generator": "python -m benchmarks.bench_verdicts --record",
    }


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=_RUNS)
    options.add_argument("--record", action="store_true")
    return options


def main() -> None:
    """Simulate, print, and record where that is asked."""
    given = parser().parse_args()
    with one_thread():
        begun, known = time.process_time(), []
        for row in rows(given.runs):
            known.append(row)
            say(f"{', '.join(row['setting'].values())}: {row['measure']} {row['mean']:.3f}")
        seconds = time.process_time() - begun
    if given.record:
        (RESULTS / "verdicts.json").write_text(
            json.dumps(recorded(known, seconds), indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
