"""How one guess forms: a job of a run once more, and a page that plays what it reported."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files

from markupsafe import Markup

from fedsim.api import (
    UNSCORED,
    ConfigError,
    Forming,
    Progress,
    Run,
    content,
    data_uri,
    duration,
    forming,
    mark,
    matched,
    read_guess,
    render,
    repeat_job,
    show,
    words,
)

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
    frames = Recording()
    spec, record = repeat_job(opened.root, part, frames.note)
    if record.status in UNSCORED or not frames.shown:
        raise ConfigError(
            f"{spec.name}: {record.reason or 'it reports no guess before its end'}. Choose a "
            "search, such as inverting or lamp."
        )
    (cell,) = (cell for cell in opened.cells if cell.name == spec.cell)
    victims, key = cell.victims, spec.keys[0]
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
