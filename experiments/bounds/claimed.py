"""An epsilon that somebody claims, beside what canaries in the clients show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from pydantic import Field, ValidationError
from torch import Tensor

from experiments.bounds.audit import FEWEST
from experiments.bounds.one_run import CanaryTrial, Claim, any_bound, gaussian_bound
from experiments.wording.epsilons import Epsilons
from fedsim.accountant import noise_multiplier
from fedsim.canaries import LOUD, Planting, turn
from fedsim.config.build import explain, suggest
from fedsim.config.section import ConfigSection
from fedsim.errors import ConfigError, StoreError
from fedsim.store.capture import CaptureKey, CaptureStore
from fedsim.store.files import Record, load_tensors, read_json
from fedsim.store.plain_files import check_folder, read_plain
from fedsim.types import Tensors

Released: TypeAlias = Literal["replies", "models"]
CONFIDENCE = 0.95
"""Of all of an audit's lower bounds together, unless another is asked for."""


class Stated(ConfigSection):
    """``--claim "epsilon=8, delta=1e-5"``: what is claimed of one client's update or example.

    Attributes:
        releases: how many replies or steps the epsilon is for; all that there are if not given.
        noise: standard deviation in clipping norms, from which the accountant's bound follows.
        rate: share of the rows that a step draws; that of the loop if not given.
    """

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    releases: int = Field(default=0, ge=0)
    noise: float | None = Field(default=None, gt=0)
    rate: float | None = Field(default=None, gt=0, le=1)

    @classmethod
    def parse(cls, text: str) -> Stated:
        """Read ``key=value`` parts between commas.

        Raises:
            ConfigError: a key does not exist, or its value cannot be.
        """
        table: dict[str, object] = {}
        for part in text.split(","):
            key, _, value = (word.strip() for word in part.partition("="))
            if key not in cls.model_fields:
                raise ConfigError(
                    f"--claim: {key!r} is none of it. {suggest(key, cls.model_fields)}"
                )
            table[key] = value
        try:
            return cls.model_validate_strings(table)
        except ValidationError as error:
            raise ConfigError(explain(error, "--claim")) from None


class Bounds(Record):
    """Bounds on the epsilon after some releases.

    Attributes:
        at_least: lower bound for Gaussian noise of unknown size.
        any_mechanism: lower bound that assumes nothing but fair coins.
        at_most: the accountant's bound for the stated noise; None where none is stated.
        shift: how far a canary moves its score, relative to what the claim implies.
    """

    releases: int
    canaries: int
    at_least: float
    any_mechanism: float
    claimed: float
    at_most: Epsilons | None
    shift: float

    @property
    def refuted(self) -> bool:
        """Whether a lower bound exceeds the claim."""
        return max(self.at_least, self.any_mechanism) > self.claimed

    def text(self, unit: str) -> str:
        """One line."""
        most = "not stated" if self.at_most is None else self.at_most.both
        return (
            f"{self.releases} {unit}: at least {self.at_least:.3g} (any mechanism "
            f"{self.any_mechanism:.3g}), claimed {self.claimed:.3g}, at most {most}; shift "
            f"{self.shift:.2f}, {self.canaries} canaries{'; REFUTED' if self.refuted else ''}"
        )


@dataclass(frozen=True)
class ClaimVerdict:
    """All bounds of an audit, and what was assumed for them."""

    rows: tuple[Bounds, ...]
    unit: str
    assumed: tuple[str, ...]

    @property
    def refuted(self) -> bool:
        """Whether the claim does not hold."""
        return any(row.refuted for row in self.rows)

    def table(self) -> dict[str, Any]:
        """As JSON data."""
        rows = [{**row.model_dump(), "refuted": row.refuted} for row in self.rows]
        return {"refuted": self.refuted, "rows": rows, "assumed": self.assumed}

    def text(self) -> str:
        """A line for each row, then the assumptions."""
        lines = [row.text(self.unit) for row in self.rows]
        return "\n".join([*lines, "assumed: " + "; ".join(self.assumed) + "."])


def judged(
    trial: CanaryTrial, stated: Stated, unit: str, seen: str, confidence: float = CONFIDENCE
) -> ClaimVerdict:
    """The bounds after a quarter of the releases, half of them, and all.

    Args:
        trial: scores of the canaries.
        stated: the claim. Where it is for a single release of several, these are pooled, and the
            bound that assumes nothing takes the first, as the coins are the same in all.
        unit: what a release is, ``rounds`` or ``steps``.
        seen: what an attacker sees of the releases.
        confidence: that no bound is above the epsilon of a mechanism that is as claimed.

    Raises:
        ConfigError: there are too few canaries, or fewer releases than claimed.
    """
    count = trial.scores.shape[1]
    heads = int(trial.included.sum())
    if len(trial.included) < FEWEST or min(heads, len(trial.included) - heads) < 2:
        raise ConfigError(
            f"canaries: {len(trial.included)} of them, {heads} taking part, are too few. Plant at "
            f"least {FEWEST}."
        )
    covered = stated.releases or count
    if covered > count:
        raise ConfigError(
            f"--claim: is for {covered} {unit}, and there are {count}. Record more, or claim fewer."
        )
    rate = trial.rate if stated.rate is None else stated.rate
    noise = stated.noise or noise_multiplier(
        steps=covered, rate=rate, target=stated.epsilon, delta=stated.delta
    )
    whole = Claim(covered, rate, noise, stated.delta)
    lengths = sorted({max(1, covered // share) for share in (4, 2, 1)})
    each = 1 - (1 - confidence) / 2 / len(lengths)
    rows = []
    for length in lengths:
        claim = Claim(length, rate, noise, stated.delta)
        first = trial.until(length)
        pooled = _pooled(trial) if covered == 1 and rate >= 1 else first
        rows.append(
            Bounds(
                releases=length,
                canaries=len(trial.included),
                at_least=gaussian_bound(pooled, claim, each),
                any_mechanism=any_bound(first, claim, each),
                claimed=stated.epsilon,
                at_most=Epsilons.of(length, rate, noise, stated.delta) if stated.noise else None,
                shift=pooled.shift / (pooled.scores.shape[1] * claim.rate),
            )
        )
    mechanism = "Gaussian" if rate >= 1 else f"Gaussian with {rate:.3g} of the rows drawn"
    assumed = (
        f"the noise is {mechanism}, of unknown size and drawn anew (not for any mechanism)",
        f"a canary of {LOUD:g} clipping norms is clipped to one",
        f"who attacks sees {seen}",
        f"the claim is for {whole.steps} {unit} of them; its noise is "
        f"{Epsilons.of(whole.steps, rate, noise, stated.delta)}",
        "neighbours differ in one canary that is there or not",
        f"all bounds hold together at {100 * confidence:g}%",
        "0 says that these canaries were not told apart, which proves nothing",
    )
    return ClaimVerdict(tuple(rows), unit, assumed)


def _pooled(trial: CanaryTrial) -> CanaryTrial:
    """Each release as a trial of its own, with the coins of the canaries."""
    count = trial.scores.shape[1]
    scores = trial.scores.reshape(-1, 1)
    return CanaryTrial(scores, np.repeat(trial.included, count), np.repeat(trial.places, count))


def trial_of_rows(folder: Path) -> CanaryTrial:
    """What ``fedsim.CanaryRows`` noted.

    Raises:
        StoreError: a file is missing or cut.
    """
    planting = Planting.open(folder)
    path, facts = folder / "scores.f64", read_json(folder / "releases.json")
    try:
        scores = np.frombuffer(read_plain(path), np.float64).reshape(-1, planting.plan.count)
    except (FileNotFoundError, ValueError):
        raise StoreError(
            f"{path}: missing or cut. Run the loop again, with watch(optimizer)."
        ) from None
    coins = np.array(planting.plan.coins)
    rows, batch = float(facts["rows"]), float(facts["batch"])
    rate = min(1.0, batch / (rows + coins.sum()))
    return CanaryTrial(scores.T, coins, (rows + np.cumsum(coins) - coins) / batch, rate)


def trial_of_captures(captures: Path, folder: Path, released: Released) -> CanaryTrial:
    """The scores of the clients' canaries in what the server saw, or in the models that it sent.

    Args:
        captures: of another application, or of state dicts.
        folder: of ``canary_mod``.
        released: ``replies`` where a client covers its own; ``models`` where the server covers
            their mean, which the next round's broadcast shows.

    Raises:
        ConfigError: no client has a canary in every round, or there is a single round of models.
    """
    check_folder(captures)
    store, planting = CaptureStore(captures), Planting.open(folder)
    names = read_json(captures / "run.json").get("clients", {})
    known = planting.numbers()
    numbers = {
        key.client: known[name]
        for key in store.keys()
        if (name := str(names.get(str(key.client), key.client))) in known
    }
    rounds = sorted({key.round for key in store.keys()})
    whole = [
        client
        for client in sorted(numbers)
        if all(CaptureKey(round=r, client=client) in set(store.keys()) for r in rounds)
    ]
    if not whole:
        raise ConfigError(
            f"{folder}: no client of {captures} has a canary in every round. Name the folder of "
            "the same run."
        )
    places = [numbers[client] for client in whole]
    if released == "replies":
        releases = _replies(store, planting, rounds, whole, places, by_mod=not names)
    else:
        releases = _models(store, planting, rounds, whole, places)
    scores = np.array(list(releases)).T
    if not scores.size:
        raise ConfigError(
            f"{captures}: the models of a single round tell no change. Capture one round more."
        )
    return CanaryTrial(scores, np.array(planting.plan.coins)[places], np.zeros(len(places)))


def _replies(
    store: CaptureStore,
    planting: Planting,
    rounds: list[int],
    whole: list[int],
    places: list[int],
    *,
    by_mod: bool,
) -> Iterator[list[float]]:
    """Of each client's reply; those of ``canary_mod`` are weights."""
    for round_ in rounds:
        scores = []
        for client, place in zip(whole, places, strict=True):
            seen = store.load(CaptureKey(round=round_, client=client))
            if by_mod:  # loud canaries look like no weights, which they are all the same
                seen = replace(seen, kind="weights")
            scores.append(-turn(round_) * float(products_of(planting, seen.update())[place]))
        yield scores


def _models(
    store: CaptureStore, planting: Planting, rounds: list[int], whole: list[int], places: list[int]
) -> Iterator[list[float]]:
    """Of a mean over the clients, times their number."""
    sent = [_sent(store, CaptureKey(round=round_, client=whole[0])) for round_ in rounds]
    for round_, (before, after) in zip(rounds, pairwise(sent), strict=False):
        moved = {name: after[name].double() - value.double() for name, value in before.items()}
        count = sum(key.round == round_ for key in store.keys())
        products = turn(round_) * count * products_of(planting, moved)
        yield [float(products[place]) for place in places]


def _sent(store: CaptureStore, key: CaptureKey) -> Tensors:
    record = store.record(key)
    sent = load_tensors(store.sent_path(record.sent_sha256), record.sent_sha256, record.sent_order)
    return {name: value for name, value in sent.items() if value.is_floating_point()}


def products_of(planting: Planting, update: Tensors) -> Tensor:
    """The inner product of each canary with an update, in clipping norms, ``(canary,)``."""
    shapes = {name: value.shape for name, value in update.items()}
    return planting.plan.directions(shapes).products(update) / planting.plan.clip
