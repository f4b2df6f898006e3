"""Attacks that use what is granted and never look at the update are not called leaks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pytest
import torch

from attacks import ATTACKS
from attacks.base import Attack, Job, Reconstruction
from attacks.observed.prior import usual_text
from experiments.analysis.summary import summarise
from experiments.console import Console
from experiments.pipeline import execute
from experiments.stages.attack import Donor, donors
from experiments.stages.score import score
from fedsim.metrics.sentences import overlap
from fedsim.metrics.tokens import Tokens
from fedsim.records import CONTROLS, PRIOR_ONLY, ScoreRow
from fedsim.store.capture import CaptureKey, Observation
from fedsim.store.rows import read_rows
from fedsim.tasks.base import Task
from fedsim.tasks.masked_language_modelling import unmasked
from fedsim.types import Batch
from tests.apps.cases import IMAGES, TEXT, Make
from tests.experiments.analysis.cases import only_section, row

Numbers: TypeAlias = np.random.Generator
CLIENTS = 12


def called(
    guess: Callable[[Any, Numbers], Any],
    prior: Callable[[Any], Any],
    granted: list[Any],
    value: Callable[[Any, int], float],
    seed: int,
    **columns: Any,
) -> bool:
    """Whether an attack is called that makes its guess from the granted fact alone.

    The controls are those of a run: the guess at a donor of equal facts, else at the victim again.
    """
    rng = np.random.default_rng(seed)
    keys = [CaptureKey(round=1, client=client) for client in range(len(granted))]
    facts = {key: ("none", str(fact)) for key, fact in zip(keys, granted, strict=True)}
    own = [guess(fact, rng) for fact in granted]

    def fed(key: CaptureKey, donor: Donor) -> Any:
        return own[donor.key.client] if donor.job is None else guess(granted[key.client], rng)

    rows = []
    for key, known in donors(facts, seed, 1).items():
        client = key.client
        place = {"client": client, "row": client, **columns}
        guesses = {name: fed(key, donor) for name, donor in zip(CONTROLS, known, strict=False)}
        for name, made in {"none": own[client], **guesses}.items():
            rows.append(row(**place, attack="blind", control=name, value=value(made, client)))
        blank = value(prior(granted[client]), client)
        rows.append(row(**place, attack=PRIOR_ONLY, attack_options="{}", value=blank))
    (verdict,) = only_section(rows).evidence.verdicts
    return verdict.word == "leaks"


def pictures(numbers: Numbers) -> tuple[dict[int, Any], list[int], list[Any]]:
    """Public pictures by class, and the classes and pictures of the clients."""
    means = numbers.random((10, 16))
    public = {k: means[k] + 0.2 * numbers.standard_normal((9, 16)) for k in range(10)}
    granted = numbers.integers(0, 10, CLIENTS).tolist()
    return public, granted, [means[k] + 0.2 * numbers.standard_normal(16) for k in granted]


IMAGE_GUESSES: dict[str, Callable[[dict[int, Any], int, Numbers], Any]] = {
    "class mean": lambda public, label, _: public[label].mean(0),
    "a public picture of the class": lambda public, label, rng: rng.choice(public[label]),
    "constant": lambda public, *_: np.full(16, 0.5),
    "noise": lambda public, label, rng: public[label].mean(0) + 0.05 * rng.standard_normal(16),
}


def image_called(name: str, seed: int) -> bool:
    public, granted, private = pictures(np.random.default_rng([seed, 1]))
    return called(
        lambda label, rng: IMAGE_GUESSES[name](public, label, rng),
        lambda label: public[label].mean(0),
        granted,
        lambda made, client: float(-10 * np.log10(np.square(made - private[client]).mean())),
        seed,
    )


def sentences(numbers: Numbers, count: int) -> list[Tokens]:
    """Texts of 3 to 6 tokens, of which few are frequent."""
    words = numbers.zipf(1.6, (count, 6)).clip(max=200).tolist()
    return [tuple(line[: numbers.integers(3, 7)]) for line in words]


PUBLIC = sentences(np.random.default_rng(0), 300)
OF_LENGTH = {length: tuple(s for s in PUBLIC if len(s) == length)[:64] for length in range(3, 7)}
TEXT_GUESSES: dict[str, Callable[[int, Numbers], Tokens]] = {
    "most frequent sentence of that length": lambda length, _: max(
        OF_LENGTH[length], key=OF_LENGTH[length].count
    ),
    "a language model's sample": lambda length, rng: OF_LENGTH[length][
        rng.integers(len(OF_LENGTH[length]))
    ],
    "constant": lambda *_: (1, 2, 3),
    "the prior's own": lambda length, _: usual_text(OF_LENGTH[length], length),
}


def text_called(name: str, seed: int) -> bool:
    private = sentences(np.random.default_rng([seed, 1]), CLIENTS)
    return called(
        TEXT_GUESSES[name],
        lambda length: usual_text(OF_LENGTH[length], length),
        [len(line) for line in private],
        lambda made, client: overlap(made, private[client]),
        seed,
        task="text-classification",
        metric="rougeL",
        unit="1",
        model="bert",
    )


SIMULATED = [
    *((image_called, name) for name in IMAGE_GUESSES),
    *((text_called, name) for name in TEXT_GUESSES),
]


@pytest.mark.some(4)
@pytest.mark.parametrize(("simulate", "name"), SIMULATED)
def test_a_blind_attack_is_not_called(simulate: Callable[[str, int], bool], name: str) -> None:
    assert not any(simulate(name, seed) for seed in range(2))


@pytest.mark.slow
@pytest.mark.parametrize(("simulate", "name"), SIMULATED)
def test_a_blind_attack_is_called_in_none_of_200_runs(
    simulate: Callable[[str, int], bool], name: str
) -> None:
    assert sum(simulate(name, seed) for seed in range(200)) == 0


@dataclass(frozen=True)
class Blind(Attack):
    """Returns public rows of the granted class or length, or their mean; reads no tensor."""

    name: ClassVar[str] = "blind"

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        known, rows = observation.knowledge, unmasked(job.auxiliary())
        if task.modality == "image":
            assert known.labels is not None
            of_class = [rows.inputs[rows.labels == label] for label in known.labels]
            means = [(own if len(own) else rows.inputs).mean(0) for own in of_class]
            return Reconstruction(Batch(torch.stack(means), torch.tensor(known.labels)))
        assert known.lengths is not None
        assert rows.mask is not None
        counts = rows.mask.sum(1)
        nearest = [int((counts - length).abs().argmin()) for length in known.lengths]
        return Reconstruction(replace(rows[nearest], labels=torch.full((len(nearest),), -1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "fact"), [(IMAGES, "labels"), pytest.param(TEXT, "lengths", marks=pytest.mark.slow)]
)
def test_a_blind_attack_of_a_run_is_not_called(
    make_run: Make, monkeypatch: pytest.MonkeyPatch, base: dict[str, Any], fact: str
) -> None:
    monkeypatch.setitem(ATTACKS, "blind", Blind)
    run = make_run(
        base,
        auxiliary={"split": "public", "rows": 60},
        federation={"clients": 8, "rounds": 1, "client_rows": 1, "batch_size": 1},
        server_knows={fact: True},
        attacks=[{"name": "blind"}, {"name": "prior_only"}],
    )
    execute(run, ("simulate", "attack"), quiet=True)
    score(run, Console(quiet=True))
    rows = read_rows(run.root / "scores.parquet", ScoreRow)
    blind = [r for r in rows if r.attack == "blind" and r.metric in ("psnr", "rougeL")]
    own = {r.client: r.value for r in blind if r.control == "none"}
    other = {r.client: r.value for r in blind if r.control == "other_client"}
    assert own == other  # its guess depends on what the victim grants alone
    (section,) = summarise(rows, [], {cell.name: cell.config for cell in run.cells}).sections
    (verdict,) = section.evidence.verdicts
    assert "leak" not in verdict.word.replace("no leak found", "")
