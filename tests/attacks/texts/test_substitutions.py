"""Substitutions find the text that the search of LAMP misses, within the tries they are given."""

from pathlib import Path
from typing import Any

import pytest

from attacks.texts.lamp import LAMP
from fedsim.models import transformer
from fedsim.tasks.text import TextTask
from tests.attacks.texts.cases import GPT2, SMALL, attack, mean, quick, several
from tests.attacks.victims import Countdown, Victim

pytestmark = pytest.mark.slow

SHORT: dict[str, Any] = SMALL | {"steps": 10, "starts": 2, "discrete": "none"}


@pytest.fixture(scope="module")
def victim() -> Victim:
    return quick()


@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_find_what_a_short_search_misses(victim: Victim, distance: Any) -> None:
    seen, truths = several(victim, [[0], [4], [9]])
    short = LAMP(**SHORT, distance=distance)
    with_them = LAMP(**SHORT, distance=distance, substitutions=3000)
    before, after = attack(victim, short, seen), attack(victim, with_them, seen)
    assert mean(before, truths) < 0.7
    assert mean(after, truths) == 1.0
    for own, other in zip(before, after, strict=True):
        assert own.objective is not None
        assert other.objective is not None
        assert other.objective < 0.01 * own.objective


def test_a_prior_proposes_words_as_well(victim: Victim, tmp_path: Path) -> None:
    network: Any = transformer.build(GPT2, "language-modelling", 3)
    network.save_pretrained(tmp_path)
    assert isinstance(victim.task, TextTask)
    victim.task.tokenizer.save_pretrained(str(tmp_path))
    seen, truths = several(victim, [[0], [4]])
    lamp = LAMP(**SHORT, prior=str(tmp_path), substitutions=3000)
    assert mean(attack(victim, lamp, seen), truths) == 1.0


def test_find_the_sentences_of_a_batch(victim: Victim) -> None:
    seen, truths = several(victim, [[0, 5]])
    (before,), (after,) = (
        attack(victim, LAMP(**SHORT, substitutions=tries), seen) for tries in (0, 4000)
    )
    assert mean([after], truths) > mean([before], truths) + 0.2


def test_tries_are_counted_and_the_guess_never_gets_worse(victim: Victim) -> None:
    seen, _ = several(victim, [[0]])
    objectives: list[float] = []
    for tries in (0, 1, 96, 960):
        (found,) = attack(victim, LAMP(**SHORT, substitutions=tries), seen)
        assert found.objective is not None
        objectives.append(found.objective)
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[0] != objectives[-1]


def test_stop_at_the_deadline_and_say_so(victim: Victim) -> None:
    # Under noise no text brings the distance to 0.
    seen, _ = several(victim, [[0]], {"name": "gaussian_noise", "std": 0.01})
    (found,) = attack(victim, LAMP(**SHORT, substitutions=10**6), seen, Countdown(asks=60))
    assert found.steps == SHORT["steps"]
    assert found.expired
