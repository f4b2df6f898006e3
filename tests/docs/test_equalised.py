"""The published matrix at equal utility: its words follow from its intervals."""

import re

import pytest

from docs.equalised import ALIKE, CHEAPER, DEARER, LESS, MORE
from docs.measured import Row, read

NAMES = ("equal-utility-images", "equal-utility-images-2", "equal-utility-text")


def by_defense(name: str, measure: str) -> dict[str, Row]:
    rows = read(name).rows
    return {row.setting["defense"]: row for row in rows if row.measure == measure}


@pytest.mark.parametrize("name", NAMES)
def test_the_word_follows_from_the_interval(name: str) -> None:
    words = by_defense(name, "beside noise")
    assert words
    (metric,) = {row.measure for row in read(name).rows} & {"PSNR", "ROUGE-L"}
    cheaper, dearer = (
        by_defense(name, f"{metric} less that of {side} noise") for side in (CHEAPER, DEARER)
    )
    for defense, word in words.items():
        more = defense in cheaper and (cheaper[defense].low or 0) > 0
        less = defense in dearer and (dearer[defense].high or 0) < 0
        assert word.outcome == (LESS if less else MORE if more else ALIKE), defense


@pytest.mark.parametrize("name", NAMES)
def test_the_sentence_counts_the_words(name: str) -> None:
    said = [row.outcome for row in by_defense(name, "beside noise").values()]
    counts = [sum(one.startswith(word) for one in said) for word in (LESS, MORE, ALIKE)]
    sentence = read(name).notes[0]
    numbers = [int(one) for one in re.findall(r"\d+", sentence)]
    assert numbers[:4] == [counts[0], len(said), *counts[1:]]


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_beside_noise_is_affordable(name: str) -> None:
    (share,) = re.findall(r"--lose \w+=([\d.]+)", read(name).command)
    (measure,) = {row.measure for row in read(name).rows if row.measure.startswith("share of")}
    lost = by_defense(name, measure)
    for defense in by_defense(name, "beside noise"):
        mean = lost[defense].mean
        assert mean is not None
        assert mean <= float(share)
