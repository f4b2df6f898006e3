"""The score stage: guesses against the private examples."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from experiments.console import Console
from experiments.plan.cells import Cell
from experiments.plan.entries import Entry, entries
from experiments.plan.folder import Run
from experiments.plan.levels import level_of
from experiments.stages.attack import Donor, donors_of
from experiments.stages.coverage import EXACT, Coverage, coverage
from experiments.stages.gallery import gallery, write_gallery
from experiments.stages.search_errors import SEARCHES, SearchErrors, search_errors
from experiments.stages.utility import defense_of, utility
from fedsim.api.guesses import NOT_YET, StoredGuess, matched, read_guess
from fedsim.api.victims import Victims
from fedsim.config.build import registry
from fedsim.metrics import METRICS
from fedsim.metrics.base import Examples, Metric
from fedsim.metrics.tokens import Tokens
from fedsim.process import one_thread
from fedsim.records import (
    CONTROLS,
    MAIN,
    OTHER_CLIENTS,
    PRIOR_ONLY,
    SECOND_CLIENT,
    UNSCORED,
    JobRecord,
    ScoreRow,
    UtilityRow,
)
from fedsim.store.capture import CaptureKey
from fedsim.store.rows import write_rows

_CACHED = 256
"""Captures whose examples and guesses stay in memory: more than most rounds have."""


def score(run: Run, console: Console) -> list[str]:
    """Write scores, coverage and utility, each as a Parquet file.

    Beside them the gallery, which alone holds private examples. Returns the reason of each job that
    the machine interrupted and that is therefore left out, as are those that were not started.
    """
    with one_thread():  # images are small
        scorers = [
            Scorer(Victims(cell), lambda note: console.advance("score", note)) for cell in run.cells
        ]
        console.expect("score", sum(scorer.comparisons for scorer in scorers))
        scores = [row for scorer in scorers for row in scorer.rows()]
        shown = list(gallery(run.cells, scores))
    pooled = {cell.name for cell in run.cells if cell.config.federation.cohort > 1}
    write_rows(run.root / "coverage.parquet", Coverage, coverage(scores, pooled))
    write_rows(run.root / "scores.parquet", ScoreRow, scores)
    searched = [errors for cell in run.cells for errors in search_errors(cell)]
    write_rows(run.root / SEARCHES, SearchErrors, searched)
    write_rows(run.root / "utility.parquet", UtilityRow, [r for c in run.cells for r in utility(c)])
    write_gallery(run.root, shown)
    return list(
        {
            (row.cell, row.attack_key, row.round, row.client): row.reason
            for row in scores
            if row.status == "interrupted" and row.control == "none" and row.reason != NOT_YET
        }.values()
    )


@dataclass(frozen=True)
class Scorer:
    """Scores every guess on one cell, and each again as a control of somebody else's victim.

    Attributes:
        on_scored: called after each attack on a capture.
        metrics: the names of those to compute; if empty, those of the experiment.
        guesses: whose guesses to score; None for the attacks of the experiment.
    """

    victims: Victims[Cell]
    on_scored: Callable[[str], object] = lambda note: None
    metrics: tuple[str, ...] = ()
    guesses: tuple[Entry, ...] | None = None

    @property
    def comparisons(self) -> int:
        """Attacks on captures, after each of which ``on_scored`` is called."""
        return len(self._chosen) * len(self.victims.keys)

    def rows(self, clients: Collection[int] | None = None) -> Iterator[ScoreRow]:
        """All rows of the cell, by attack, capture, control, metric and example.

        Args:
            clients: those to score; None for all.
        """
        victims = self.victims
        truth = lru_cache(_CACHED)(victims.examples)
        others = controls(victims)
        for entry in self._chosen:
            guess = lru_cache(_CACHED)(partial(read_guess, victims))
            for key in victims.keys:
                if clients is not None and key.client not in clients:
                    continue
                mine = guess(entry.label, key)
                yield from self._compare(entry, key, mine, truth(key), "none")
                if entry.key.attack != PRIOR_ONLY:  # it is a baseline itself
                    known = [guess(*donor.source(entry.label, key)) for donor in others[key]]
                    known.sort(key=lambda fed: fed.cut != mine.cut)  # those that ended alike first
                    for control, fed in zip(CONTROLS, known, strict=False):
                        yield from self._compare(entry, key, fed, truth(key), control)
                self.on_scored(f"{entry.label} {key}")
            if entry.key.attack != PRIOR_ONLY:
                yield from self._rows_for_others(entry, clients)

    def _rows_for_others(self, entry: Entry, clients: Collection[int] | None) -> Iterator[ScoreRow]:
        """One row for each private example: how near a guess at another client of the round came.

        Of a text whether it was guessed, of an image the least error.

        Args:
            entry: the attack.
            clients: those to compare; None for all.
        """
        exact = next((m for m in self._all_metrics if m.name in EXACT), None)
        if exact is None:
            return
        keys = [
            key
            for key in self.victims.keys
            if self.victims.records[key].probe == "none"
            and (clients is None or key.client in clients)
        ]
        guesses = {key: read_guess(self.victims, entry.label, key) for key in keys}
        rows = {key: self.victims.records[key].rows for key in keys}
        for key, values in self._for_others(guesses, rows).items():
            common = self.columns(entry, key, guesses[key].record, OTHER_CLIENTS)
            for example, value in enumerate(values):
                if not math.isfinite(value):  # all others hold the same row
                    continue
                unknown = guesses[key].record.status in UNSCORED
                yield ScoreRow(
                    **common,
                    example=example,
                    row=rows[key][example],
                    metric=exact.name,
                    unit=exact.unit,
                    value=None if unknown else value,
                    certified=None,
                )

    def _for_others(
        self, guesses: Mapping[CaptureKey, StoredGuess], rows: Mapping[CaptureKey, Sequence[int]]
    ) -> dict[CaptureKey, list[float]]:
        """How near others' guesses come to each private example, in the metric of ``EXACT``."""
        truth = {key: self.victims.examples(key) for key in guesses}
        known = {key: guess.examples for key, guess in guesses.items() if guess.examples}
        if self.victims.task.modality == "image":
            images = {key: examples.batch.inputs for key, examples in truth.items()}
            guessed = {key: examples.batch.inputs.clamp(0, 1) for key, examples in known.items()}
            return nearest_for_others(guessed, images, rows)
        tokens = {key: examples.tokens for key, examples in known.items()}
        texts = {key: examples.tokens for key, examples in truth.items()}
        hits = guessed_for_others(tokens, texts)
        return {key: [float(hit) for hit in of_capture] for key, of_capture in hits.items()}

    @property
    def _chosen(self) -> list[Entry]:
        return self.that_infer("rows")

    def that_infer(self, what: str) -> list[Entry]:
        """The scored attacks that infer rows, or membership."""
        given = self.guesses
        known = entries(self.victims.cell.experiment) if given is None else given
        return [entry for entry in known if entry.infers == what]

    def _compare(
        self, entry: Entry, key: CaptureKey, guess: StoredGuess, truth: Examples, control: str
    ) -> Iterator[ScoreRow]:
        """One row for each metric and example."""
        pairing = matched(guess, truth, self.victims.task.modality)
        common = self.columns(entry, key, guess.record, control)
        rows = self.victims.records[key].rows
        none = guess.record.status in UNSCORED or (control != "none" and guess.examples is None)
        for metric in self._metrics(control):
            values = metric.score(pairing.aligned, truth).tolist()
            for example, value in enumerate(values):
                yield ScoreRow(
                    **common,
                    example=example,
                    row=rows[example],
                    metric=metric.name,
                    unit=metric.unit,
                    value=None if none or math.isnan(value) else value,
                    certified=pairing.certified(example),
                )

    def columns(
        self, entry: Entry, key: CaptureKey, job: JobRecord, control: str
    ) -> dict[str, Any]:
        """What all rows of one comparison have in common."""
        record = self.victims.records[key]
        return {
            **self._cell_columns,
            **asdict(entry.key),
            "local_steps": len(record.steps),
            "control": control,
            "round": key.round,
            "client": key.client,
            "probe": record.probe,
            "status": job.status,
            "reason": job.reason,
            "cause": job.cause,
            "objective": job.objective,
            "seconds": job.seconds,
        }

    @cached_property
    def _cell_columns(self) -> dict[str, Any]:
        """What all rows of the cell have in common."""
        cell = self.victims.cell
        task, federation = cell.config.task, cell.config.federation
        return {
            "run": cell.experiment.name,
            "cell": cell.name,
            "seed": cell.config.seed,
            "task": self.victims.task.spec.kind,
            "model": task.model,
            "dataset": task.dataset,
            "split": task.split,
            "protocol": federation.protocol,
            "batch_size": federation.batch_size,
            **defense_of(cell)._asdict(),
            "level": "" if self.victims.foreign else level_of(cell.config),
        }

    def _metrics(self, control: str) -> list[Metric]:
        """All; for the second control, which only the null test reads, the main one alone."""
        main = MAIN[self.victims.task.modality]
        return [m for m in self._all_metrics if control != SECOND_CLIENT or m.name == main]

    @cached_property
    def _all_metrics(self) -> list[Metric]:
        """The metrics asked for, or all that fit and are available."""
        task, known = self.victims.task, registry(METRICS, "fedsim.metrics")
        asked = self.metrics or self.victims.cell.experiment.metrics
        chosen = [known[name]() for name in asked or known]
        fitting = [metric for metric in chosen if not task.unfit(metric)]
        if task.spec.num_classes == 0:  # a language model has no classes
            fitting = [metric for metric in fitting if metric.name != "label_accuracy"]
        return [metric for metric in fitting if not metric.available()]


def controls(victims: Victims[Cell]) -> dict[CaptureKey, list[Donor]]:
    """For each capture the donors that share no row with it, of which two serve if there are two.

    An attack depends on its observation alone, so that its guess at a donor with equal facts is the
    guess that it makes when the victim's reply is exchanged for the donor's. Of other applications
    some truth may be missing: such a donor is taken to hold other rows.
    """
    rows = {key: frozenset(record.rows) for key, record in victims.records.items()}
    known = donors_of(victims.cell)
    return {
        key: [donor for donor in known[key] if mine.isdisjoint(rows.get(donor.key, ()))]
        for key, mine in rows.items()
    }


def guessed_for_others(
    guesses: Mapping[CaptureKey, Sequence[Tokens]], texts: Mapping[CaptureKey, Sequence[Tokens]]
) -> dict[CaptureKey, list[bool]]:
    """For each private text whether the attack guessed it for another client of the round.

    An attack that guesses from a list of likely texts, and is right by chance, is as right about
    others. Guesses of a text for those who hold it do not count. Left out are captures of rounds
    in which nothing was guessed for another client.

    Args:
        guesses: all that the attack guessed from each capture, where it guessed.
        texts: the private texts of each capture.
    """
    asked = defaultdict(set)
    clients: defaultdict[tuple[int, Tokens], set[int]] = defaultdict(set)
    for key, guessed in guesses.items():
        asked[key.round].add(key.client)
        for text in {*guessed} - {*texts[key]}:
            clients[key.round, text].add(key.client)
    return {
        key: [bool(clients[key.round, text] - {key.client}) for text in private]
        for key, private in texts.items()
        if asked[key.round] - {key.client}
    }


def nearest_for_others(
    guesses: Mapping[CaptureKey, Tensor],
    images: Mapping[CaptureKey, Tensor],
    rows: Mapping[CaptureKey, Sequence[int]],
) -> dict[CaptureKey, list[float]]:
    """For each private image the least squared error of a guess at another client of the round.

    Guesses at clients who hold the same row do not count.

    Args:
        guesses: all that the attack guessed from each capture, where it guessed, in [0, 1].
        images: the private ones of each capture, ``(image, channel, height, width)``.
        rows: of the private images.
    """
    nearest: dict[CaptureKey, list[float]] = {}
    for key, private in images.items():
        others = [
            (other, guess)
            for other, guess in guesses.items()
            if other.round == key.round and other.client != key.client
        ]
        if others:
            flat = private.flatten(1).double()
            errors = {o: torch.cdist(flat, g.flatten(1).double()).square() for o, g in others}
            nearest[key] = [
                min(
                    (
                        float(error[i].min()) / flat.shape[1]
                        for other, error in errors.items()
                        if rows[key][i] not in rows[other]
                    ),
                    default=math.inf,
                )
                for i in range(len(flat))
            ]
    return nearest
