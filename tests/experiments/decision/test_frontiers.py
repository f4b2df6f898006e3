"""Searches on simulated defenses whose leakage is known."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from experiments.analysis.statistics import Floats
from experiments.decision.search import (
    Decision,
    Errors,
    Score,
    Word,
    bisect,
    decide,
    looks,
    weakest,
)
from experiments.decision.sequence import lower, upper
from experiments.decision.targets import RARE, Target

ERROR = 0.05
ATTACKS = ("weak", "fair", "strong")
CLIENTS, GROUP, STRENGTHS = 64, 4, 15
MEAN, SHARE = Target("rouge1", 0.3), Target("verbatim", 0.0)
ASKED = 0.1


@dataclass
class Frontier:
    """A family of known truth: leakage falls with strength, attack by attack.

    Attributes:
        means: attack -> true mean at each strength.
        shares: attack -> true share of clients with an exact example at each strength.
        spread: concentration of the scores of clients about the mean.
    """

    rng: np.random.Generator
    means: Mapping[str, Floats]
    shares: Mapping[str, Floats]
    spread: float
    jobs: int = 0
    decisions: dict[int, Decision] = field(default_factory=dict)

    @classmethod
    def drawn(cls, seed: int) -> "Frontier":
        """Curves with a random threshold, slope and floor; a quarter of them never leak."""
        rng = np.random.default_rng(seed)
        at, slope = rng.uniform(-2, STRENGTHS + 2), rng.uniform(0.2, 3.0)
        fall = 1 / (1 + np.exp(slope * (np.arange(STRENGTHS) - at)))
        floor = rng.uniform(0.02, 0.25)
        powers = dict(zip(ATTACKS, np.sort(rng.uniform(0.1, 1.0, 3)), strict=True))
        means = {name: floor + (0.95 - floor) * power * fall for name, power in powers.items()}
        exact = bool(rng.uniform() < 0.75)
        shares = {name: exact * power * fall**3 for name, power in powers.items()}
        return cls(rng, means, shares, float(rng.choice([2.0, 8.0, 50.0])))

    def holds(self, index: int) -> bool:
        """The truth: no attack has a mean at the limit, or exact examples of a quarter."""
        mean = max(float(value[index]) for value in self.means.values())
        share = max(float(value[index]) for value in self.shares.values())
        return mean < MEAN.limit and share < RARE

    def leaks(self, index: int) -> bool:
        """The truth: an attack has a mean above the limit, or any exact example."""
        mean = max(float(value[index]) for value in self.means.values())
        share = max(float(value[index]) for value in self.shares.values())
        return mean > MEAN.limit or share > 0

    def word(self, index: int, every: bool = False) -> Word:
        errors = Errors.shared(ERROR, [STRENGTHS], len(ATTACKS), 2)
        trial, clients = At(self, index), range(CLIENTS)
        targets = (MEAN, SHARE if every else SHARE.searched)
        decision = decide(trial, ATTACKS, targets, clients, errors, GROUP, every=every)
        self.decisions[index] = decision
        return decision.word


@dataclass
class At:
    """The attacks on one strength of a frontier."""

    frontier: Frontier
    index: int

    def attack(
        self, attacks: Collection[str], clients: Sequence[int]
    ) -> Mapping[str, Mapping[str, Sequence[Score]]]:
        one, n = self.frontier, len(clients)
        one.jobs += n * len(attacks)
        found = {}
        for attack in attacks:
            mean = float(one.means[attack][self.index])
            scores = one.rng.beta(one.spread * mean, one.spread * (1 - mean), n)
            exact = one.rng.uniform(size=n) < one.shares[attack][self.index]
            found[attack] = {
                MEAN.name: [Score(x, x) for x in scores.tolist()],
                SHARE.name: [Score(x, x) for x in exact.astype(float).tolist()],
            }
        return found

    def faults(self) -> str:
        return ""


@pytest.mark.parametrize("frontiers", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_frontiers_of_known_truth(frontiers: int) -> None:
    """False holds and false leaks are rare, and the search costs a part of a full grid."""
    false_holds = false_leaks = jobs = found = right = 0
    for seed in range(frontiers):
        frontier = Frontier.drawn(seed)
        chosen = weakest(STRENGTHS, frontier.word)
        words = {index: decision.word for index, decision in frontier.decisions.items()}
        false_holds += any(w == "holds" and not frontier.holds(i) for i, w in words.items())
        false_leaks += any(w == "leaks" and not frontier.leaks(i) for i, w in words.items())
        jobs += frontier.jobs
        found += chosen is not None
        truth = next((i for i in range(STRENGTHS) if frontier.holds(i)), None)
        right += chosen == truth
    grid = frontiers * STRENGTHS * CLIENTS * len(ATTACKS)
    print(
        f"false holds {false_holds}, false leaks {false_leaks} of {frontiers}; "
        f"{found} found, {right} at the true place; {jobs / grid:.3f} of the jobs of a grid"
    )
    assert false_holds <= ERROR * frontiers
    assert false_leaks <= ERROR * frontiers
    assert jobs <= 0.35 * grid
    assert found > frontiers / 2


@pytest.mark.parametrize("mean", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("spread", [1.0, 20.0, None])
def test_a_bound_covers_at_every_look(mean: float, spread: float | None) -> None:
    """One minus the error is kept although one looks after every client and stops at the worst."""
    rng = np.random.default_rng(1)
    missed = [0, 0]
    for _ in range(300):
        if spread is None:
            scores = (rng.uniform(size=40) < mean).astype(float)
        else:
            scores = rng.beta(spread * mean, spread * (1 - mean), 40)
        missed[0] += upper(list(scores), 0.1) < mean
        missed[1] += lower(list(scores), 0.1) > mean
    assert max(missed) <= 40  # .1 of 300, and two standard errors


def test_a_bound_narrows() -> None:
    assert upper([], 0.05) == 1.0
    assert lower([], 0.05) == 0.0
    many, few = ([0.2, 0.3] * n for n in (30, 3))
    assert 0.25 < upper(many, 0.05) < upper(few, 0.05) < 1
    assert 0.25 > lower(many, 0.05) > lower(few, 0.05) > 0


def test_a_larger_error_is_bolder() -> None:
    scores = [0.1, 0.2, 0.0, 0.3] * 4
    assert upper(scores, 0.2) < upper(scores, 0.01)


def test_an_attack_below_all_targets_is_not_gone_on_with() -> None:
    frontier = Frontier.drawn(0)
    frontier.means = {
        name: np.full(STRENGTHS, m) for name, m in zip(ATTACKS, (0.01, 0.02, 0.28), strict=True)
    }
    frontier.shares = {name: np.zeros(STRENGTHS) for name in ATTACKS}
    frontier.spread = 50.0
    assert frontier.word(0) == "open"
    bounds = frontier.decisions[0].bounds
    assert bounds["weak"]["rouge1"].clients < bounds["strong"]["rouge1"].clients == CLIENTS
    assert frontier.decisions[0].attack == "strong"


class Broken(At):
    def faults(self) -> str:
        return "2 jobs failed"


def test_what_is_at_fault_never_holds() -> None:
    frontier = Frontier.drawn(0)
    frontier.means = {name: np.full(STRENGTHS, 0.01) for name in ATTACKS}
    frontier.shares = {name: np.zeros(STRENGTHS) for name in ATTACKS}
    assert frontier.word(3) == "holds"
    errors = Errors.shared(ERROR, [STRENGTHS], 3, 2)
    trial = Broken(frontier, 3)
    broken = decide(trial, ATTACKS, (MEAN, SHARE), range(CLIENTS), errors, GROUP)
    assert (broken.word, broken.reason) == ("open", "2 jobs failed")


@pytest.mark.parametrize("strengths", [1, 2, 7, 14, 15])
def test_bisection_finds_each_place_in_few_looks(strengths: int) -> None:
    for place in range(strengths + 1):
        tried: list[int] = []

        def word(index: int, place: int = place, tried: list[int] = tried) -> Word:
            tried.append(index)
            return "holds" if index >= place else "leaks"

        assert bisect(strengths, word) == (place if place < strengths else None)
        assert len(tried) <= looks(strengths)
        assert len(set(tried)) == len(tried)


@pytest.mark.parametrize(
    ("target", "blind", "nats", "bound"),
    [
        (Target("rouge1", 0.2), 0.1, 0.0, 0.1),
        (Target("rouge1", 0.2), 0.1, math.inf, None),
        (Target("rouge1", 0.2), 0.1, 3.0, None),  # more than -log .1: any mean is possible
        (Target("verbatim", 0.0), 0.0, 0.1, None),  # what a blind guess never hits has no mean
        (Target("psnr", 18.0, 0.0, 25.0), 0.5, 0.02, 14.98),
        (Target("mse", 0.01, 1.0, 0.0), 0.95, 0.001, 0.0406),
    ],
)
def test_a_target_is_bounded_by_information(
    target: Target, blind: float, nats: float, bound: float | None
) -> None:
    found = target.bound(blind, nats)
    assert (found is None) == (bound is None)
    if found is not None:
        assert found == pytest.approx(bound, rel=2e-3)


@dataclass
class OneExact:
    """Attacks of which the last gets an exact example of one client, and nothing else."""

    hit: int

    def attack(
        self, attacks: Collection[str], clients: Sequence[int]
    ) -> Mapping[str, Mapping[str, Sequence[Score]]]:
        return {
            attack: {
                SHARE.name: [
                    Score(hit, hit)
                    for client in clients
                    for hit in [float(client == self.hit and attack == ATTACKS[-1])]
                ]
            }
            for attack in attacks
        }

    def faults(self) -> str:
        return ""


@pytest.mark.parametrize("hit", range(16))
def test_one_exact_example_never_holds(hit: int) -> None:
    errors = Errors.shared(ERROR, [STRENGTHS], len(ATTACKS), 1)
    decision = decide(OneExact(hit), ATTACKS, (SHARE,), range(CLIENTS), errors, GROUP)
    assert (decision.word, decision.attack) == ("leaks", ATTACKS[-1])
    assert decision.clients == GROUP * (hit // GROUP + 1)


@dataclass
class Gaps:
    """A family of which at each strength a share of the clients comes back, with a gap or none."""

    share: Floats
    hits: npt.NDArray[np.bool_]
    jobs: int = 0

    @classmethod
    def drawn(cls, seed: int) -> "Gaps":
        """Shares of .02 to .2 above a random threshold, all below; a third have a gap at it."""
        rng = np.random.default_rng(seed)
        at = int(rng.integers(0, STRENGTHS + 1))
        share = np.where(np.arange(STRENGTHS) < at, 1.0, rng.uniform(0.02, 0.2))
        if rng.uniform() < 1 / 3:
            share[rng.integers(0, STRENGTHS)] = 0.0
        return cls(share, rng.uniform(size=(CLIENTS, STRENGTHS)) < share)

    def word(self, index: int, every: bool) -> Word:
        errors = Errors.shared(ERROR, [STRENGTHS], 1, 1)
        trial = Listed(self.hits[:, index].astype(float).tolist())
        asked = Target("verbatim", 0.0, share=ASKED)
        target = asked if every else asked.searched
        decision = decide(trial, ("a",), (target,), range(CLIENTS), errors, GROUP, every=every)
        self.jobs += decision.clients
        return decision.word


@dataclass
class Listed:
    """An attack whose hits are known."""

    hits: Sequence[float]

    def attack(
        self, attacks: Collection[str], clients: Sequence[int]
    ) -> Mapping[str, Mapping[str, Sequence[Score]]]:
        known = [Score(self.hits[client], self.hits[client]) for client in clients]
        return {attack: {"verbatim": known} for attack in attacks}

    def faults(self) -> str:
        return ""


@pytest.mark.parametrize("frontiers", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_share_that_was_asked_for_is_falsely_held_in_5_percent_at_most(frontiers: int) -> None:
    false = jobs = held = 0
    for seed in range(frontiers):
        family = Gaps.drawn(seed)
        index = weakest(STRENGTHS, family.word)
        held += index is not None
        false += index is not None and family.share[index] >= ASKED
        jobs += family.jobs
    grid = frontiers * STRENGTHS * CLIENTS
    print(f"false holds {false} of {frontiers}, {held} held; {jobs / grid:.3f} of a grid's jobs")
    assert false <= ERROR * frontiers
    assert jobs <= 0.35 * grid
