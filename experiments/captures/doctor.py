"""Whether the truth of a test federation belongs to the captures of its application."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.captures.captured import Captured
from experiments.captures.evidence import Fit, fit_of
from fedsim.capture import CaptureKey
from fedsim.errors import StoreError
from fedsim.truth import TruthStore

_FAULT = (
    "the noted examples explain another client's update better than this one. Pass the truth of "
    "the same run, and the model and loss that the clients train"
)


@dataclass(frozen=True)
class Checkup:
    """Fits of the true examples.

    Attributes:
        fits: by capture.
        untold: captures without their truth.
    """

    fits: dict[CaptureKey, Fit]
    untold: tuple[CaptureKey, ...]

    @property
    def faults(self) -> int:
        """Captures whose truth explains another client's update better."""
        return sum(map(_faulty, self.fits.values()))

    def table(self) -> dict[str, Any]:
        """As JSON data."""
        rows = [{"key": str(k), "own": f.own, "other": f.other} for k, f in self.fits.items()]
        untold = [str(key) for key in self.untold]
        return {"captures": len(rows), "faulty": self.faults, "fits": rows, "untold": untold}

    def text(self) -> str:
        """One line per capture."""
        lines = [
            f"{key}  {'FAULTY' if _faulty(fit) else 'ok':6}  {fit}"
            for key, fit in self.fits.items()
        ]
        lines += [f"{key}  no truth was noted" for key in self.untold]
        lines += [f"FAULT: {_FAULT}."] if self.faults else []
        state = f"{self.faults} are faulty" if self.faults else "every capture is consistent"
        return "\n".join([*lines, f"{len(self.fits)} captures compared: {state}"])


def _faulty(fit: Fit) -> bool:
    return fit.own < (fit.other or 0.0)


def examine(found: Captured, truth: Path) -> Checkup:
    """Compare the gradient on each client's true examples with its update.

    An update of many steps, or of Adam, points elsewhere than the gradient at its start, so that
    the comparison with another client's update decides, and not the cosine itself.

    Raises:
        StoreError: there is no truth of these captures.
    """
    private = TruthStore(truth)
    known = private.by_capture() if truth.is_dir() else {}
    keys = found.store.keys()
    told = [key for key in keys if key in known]
    if not told:
        raise StoreError(
            f"{truth}: holds no examples of these captures. Pass the folder that truth_mod wrote "
            "in the same run."
        )
    fits = {}
    for key in told:
        examples = private.load(key, found.store.record(key).nodes)
        fit = fit_of(examples, found.update(key), found.other(key))
        if fit is not None:
            fits[key] = fit
    return Checkup(fits, tuple(key for key in keys if key not in fits))
