"""What the running jobs of a run have so far, for whoever watches it; gone when the run ends."""

from __future__ import annotations

import base64
import json
import math
import time
from contextlib import suppress
from pathlib import Path

from attacks.scheduling.jobs import JobSpec, Progress
from experiments.stages.png import png
from fedsim.api.live import FILE, Forming, LiveRecord
from fedsim.errors import FedsimError
from fedsim.store.files import write_bytes

EVERY = 1.0
"""Seconds between two writes."""


class Live:
    """Writes the file at most once a second; a run never fails for it."""

    def __init__(self, run: Path) -> None:
        self._path = run / FILE
        self._jobs: dict[str, Progress] = {}
        self._written = 0.0

    def note(self, spec: JobSpec, progress: Progress) -> None:
        """Take the progress of a job."""
        self._jobs[spec.name] = progress
        if time.monotonic() - self._written >= EVERY:
            self._written = time.monotonic()
            record = LiveRecord(jobs={name: forming(latest) for name, latest in self._jobs.items()})
            with suppress(FedsimError):  # the guess itself is written when the job ends
                data = json.dumps(record.model_dump()).encode()
                write_bytes(self._path, data, sync=False, private=True)

    def drop(self, spec: JobSpec) -> None:
        """The job has ended."""
        self._jobs.pop(spec.name, None)

    def close(self) -> None:
        """No job runs any more."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def forming(progress: Progress) -> Forming:
    """What the file holds of a progress."""
    image = b"" if progress.image is None else png(progress.image)
    return Forming(
        phase=progress.phase,
        step=progress.step,
        objective=progress.objective if math.isfinite(progress.objective) else None,
        text=progress.text,
        image=base64.b64encode(image).decode(),
    )
