"""How often a right guess is certified on random draws, and whether a wrong one ever is.

    python -m benchmarks.bench_certificates --record
    python -m benchmarks.bench_certificates --against 3f2a1b0

The first writes ``docs/results/certificates.json``. The second makes the same draws with the
package of another revision and lists every certificate that only one of both gives: a change of
what is proven may take certificates away, and names each of them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import certificate_draws
from benchmarks.certificate_draws import MODELS, DrawnCertificate, draws
from docs.measured import RESULTS, ROOT, made_here
from experiments.analysis.statistics import clopper_pearson
from fedsim.errors import ConfigError
from fedsim.process import one_thread
from fedsim.visible import say

_DRAWS = 1000
_UPDATES = {
    "float32": "float32",
    "bfloat16": "bfloat16 or float16",
    "float16": "bfloat16 or float16",
    "noise of 1e-06 rms": "noise of a millionth of its rms",
    "noise of 0.0001 rms": "noise of a ten-thousandth",
    "noise of 0.01 rms": "noise of a hundredth",
}
"""What became of an update, in the order of the table."""
_GENERATOR = "python -m benchmarks.bench_certificates --record"


def certificate_rows(drawn: Sequence[DrawnCertificate]) -> list[dict[str, Any]]:
    """Rows of the result file: right guesses by update and model, wrong ones by model."""
    rows = []
    for update in dict.fromkeys(_UPDATES.values()):
        for model in MODELS:
            part = [d for d in drawn if d.model == model and _UPDATES[d.update] == update]
            if part:
                share = sum(d.right for d in part) / len(part)
                rows.append(_row(f"right guess, {update}", model, len(part), share))
    for model in (*MODELS, "all"):
        part = [d for d in drawn if model in (d.model, "all")]
        guesses = sum(len(d.tried) for d in part)
        share = sum(len(d.wrong) for d in part) / max(1, guesses)
        rows.append(_row("wrong guesses", model, guesses, share))
    hit = sum(bool(d.wrong) for d in drawn)
    low, high = clopper_pearson(hit, len(drawn), error=0.1)  # each end one-sided, at 95 %
    row = _row("draws with a wrong certificate", "all", len(drawn), hit / len(drawn))
    return [*rows, row | {"low": round(low, 4), "high": round(high, 4)}]


def _row(measure: str, model: str, n: int, share: float) -> dict[str, Any]:
    setting = {"guess": measure, "model": model}
    return {"setting": setting, "measure": "certified", "n": n, "mean": share, "unit": "of n"}


def recorded(drawn: Sequence[DrawnCertificate], seconds: float) -> dict[str, Any]:
    """The result file."""
    return {
        "title": "Certificates on random draws, right and wrong guesses",
        "paper": "",
        "command": "python -m benchmarks.bench_certificates",
        **made_here(seconds),
        "columns": {"lines": ["guess"], "across": "model", "digits": {"certified": 4}},
        "rows": certificate_rows(drawn),
        "notes": [
            "Each draw is a client of a model with random weights: 1 to 4 rows, a gradient or the "
            "weights of one step, clipped or not, the loss a mean or another multiple. n: draws of "
            "right guesses, and guesses of wrong ones.",
            "Wrong guesses differ from the private batch in a word, the order of two words, a "
            "pixel by a sixteenth to a quarter, an image that is darker by such a share, a class, "
            "a row that is another's or stands twice; two kinds a draw. The interval's ends are "
            "exact, one-sided at 95 % (Clopper and Pearson), with a draw as one trial.",
            "Images that are certified have to fit within an error of 1e-5, as values are "
            "continuous and a coarser wire fits other images as well. The right ones in float32 "
            "without a certificate are weights of a step, whose rounding leaves more.",
        ],
        "generator": _GENERATOR,
    }


def against(revision: str, count: int) -> Iterator[DrawnCertificate]:
    """The same draws with the package of another revision.

    Raises:
        ConfigError: the revision does not exist, or lacks a name that the draws need.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        add = ["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(tree), revision]
        added = subprocess.run(add, capture_output=True, text=True, check=False)
        if added.returncode:
            raise ConfigError(f"--against {revision}: {added.stderr.strip()}")
        try:
            shutil.copy(certificate_draws.__file__, tree / "benchmarks_draws.py")
            command = [sys.executable, "benchmarks_draws.py", str(count)]
            ran = subprocess.run(
                command,
                cwd=tree,
                env={**os.environ, "PYTHONPATH": str(tree)},
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            remove = ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)]
            subprocess.run(remove, check=True)
    if ran.returncode:
        raise ConfigError(f"--against {revision}: {ran.stderr.strip().splitlines()[-1]}")
    for line in ran.stdout.splitlines():
        table: dict[str, Any] = json.loads(line)
        for name in ("tried", "wrong"):
            table[name] = tuple(table[name])
        yield DrawnCertificate(**table)


def differences(old: Sequence[DrawnCertificate], new: Sequence[DrawnCertificate]) -> Iterator[str]:
    """A line for each draw of which other guesses are certified, and one about the messages."""
    other = sum(a.message != b.message for a, b in zip(old, new, strict=True))
    yield f"{other} of {len(new)} messages differ"
    for a, b in zip(old, new, strict=True):
        if (a.right, a.wrong) != (b.right, b.wrong):
            yield f"draw {b.seed}, {b.model}, {b.update}: {_said(a)} before, {_said(b)} now"
    for name, part in (("before", old), ("now", new)):
        right, wrong = sum(d.right for d in part), sum(len(d.wrong) for d in part)
        yield f"{name}: {right} of {len(part)} right guesses certified, {wrong} wrong ones"


def _said(drawn: DrawnCertificate) -> str:
    return " and ".join(["right"] * drawn.right + [f"wrong {kind}" for kind in drawn.wrong]) or "-"


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--draws", type=int, default=_DRAWS)
    options.add_argument("--record", action="store_true")
    options.add_argument("--against", default="", metavar="REV")
    return options


def main() -> None:
    """Draw, and record or compare."""
    given = parser().parse_args()
    with one_thread():
        begun = time.process_time()
        drawn = [*draws(given.draws)]
        seconds = time.process_time() - begun
    for row in certificate_rows(drawn):
        say(
            f"{row['setting']['guess']:<55} {row['setting']['model']:<10} {row['n']:>5} "
            f"{row['mean']:.4f}"
        )
    if given.record:
        text = json.dumps(recorded(drawn, seconds), indent=1) + "\n"
        (RESULTS / "certificates.json").write_text(text)
    if given.against:
        for line in differences([*against(given.against, given.draws)], drawn):
            say(line)


if __name__ == "__main__":
    main()
