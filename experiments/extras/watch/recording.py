"""How one guess forms: a job of a run once more, and a page that plays what it reported."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from markupsafe import Markup

from attacks.scheduling.isolation import run
from attacks.scheduling.jobs import JobSpec, Progress
from experiments.plan.cells import Cell
from experiments.plan.folder import Run
from experiments.report.gallery import data_uri, mark, words
from experiments.report.templates import render
from experiments.stages.attack import jobs
from experiments.stages.gallery import content
from experiments.stages.live import forming
from experiments.wording.names import duration, show
from fedsim.api.guesses import matched, read_guess
from fedsim.api.live import Forming
from fedsim.api.victims import Victims
from fedsim.errors import ConfigError
from fedsim.records import UNSCORED

SCRIPT = files("experiments.extras.watch").joinpath("play.js").read_text("utf-8")
_MOST = 120
"""Frames of a page; of more every second is left out."""
_PAIRS = 8
"""Private examples beside the guesses at the end."""


@dataclass
class Recording:
    """What a running job reports, thinned evenly."""

    shown: list[Forming] = field(default_factory=list)
    _every: int = 1
    _seen: int = 0

    def note(self, progress: Progress) -> None:
        """Take a report that has a picture or a text."""
        if progress.image is None and not progress.text:
            return
        if self._seen % self._every == 0:
            self.shown.append(forming(progress))
        self._seen += 1
        if len(self.shown) > _MOST:
            self.shown, self._every = self.shown[::2], 2 * self._every


def played(opened: Run, part: str) -> str:
    """The page of the first job whose name has this part.

    The job runs again from the run's captures and seed, and leaves the run as it is.

    Raises:
        ConfigError: no job has such a name, the job ended badly, or it reported no guess.
    """
    every = [(cell, spec) for cell in opened.cells for spec in jobs(cell) if not spec.donors]
    chosen = next(((cell, spec) for cell, spec in every if part in spec.name), None)
    if chosen is None:
        names = ", ".join(sorted({spec.label for _, spec in every}))
        raise ConfigError(
            f"{part!r}: no job of {opened.root} has such a name. Its attacks are {names}; write "
            "inverting/round-0001-client-0000, for example."
        )
    return _page(*chosen)


def _page(cell: Cell, spec: JobSpec) -> str:
    frames, victims, key = Recording(), Victims(cell), spec.keys[0]
    with TemporaryDirectory() as place:
        apart = replace(spec, guesses=Path(place) / spec.cell / "guesses")
        record = run(apart, frames.note)[0]
    if record.status in UNSCORED or not frames.shown:
        raise ConfigError(
            f"{spec.name}: {record.reason or 'it reports no guess before its end'}. Choose a "
            "search, such as inverting or lamp."
        )
    guess, truth = read_guess(victims, spec.label, key), victims.examples(key)
    modality = victims.task.modality
    end = matched(guess, truth, modality)
    pairs = [
        (
            content(truth, i, modality),
            None if end.assignment[i] is None else content(end.aligned, i, modality),
        )
        for i in range(min(len(end.assignment), _PAIRS))
    ]
    return render(
        "experiments.extras.watch",
        "play.html.j2",
        name=spec.name,
        seconds=record.seconds,
        frames=frames.shown,
        repeated=guess.record.sha256 == record.sha256,
        pairs=pairs,
        modality=modality,
        **{each.__name__: each for each in (data_uri, duration, mark, show, words)},
        script=Markup(SCRIPT),  # ours
        script_hash=b64encode(sha256(SCRIPT.encode()).digest()).decode(),
    )
