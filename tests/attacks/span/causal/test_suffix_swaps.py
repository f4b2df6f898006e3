"""Sentences that have taken each other's ends."""

from __future__ import annotations

import copy
from typing import cast

import pytest
import torch

from attacks.base import Job
from attacks.span.causal.matched_growth import swap_suffixes
from attacks.tokens.next_token_shift import DirectionalShift

TRUE = [[1, 2, 3, 4, 5], [1, 6, 7, 8, 9, 10], [1, 11, 12, 13]]


class Bigrams:
    """Knows which word follows another in the true sentences."""

    def along(self, lines: list[torch.Tensor]) -> list[torch.Tensor]:
        table = torch.zeros(20, 20)
        for one in TRUE:
            table[one[:-1], one[1:]] = 4.0
        return [table[line[:-1]] for line in lines]


def exchanged(lines: list[list[int]], longest: int, job: Job | None = None) -> list[list[int]]:
    told = cast(DirectionalShift, Bigrams())
    tensors = [torch.tensor(x) for x in lines]
    return [line.tolist() for line in swap_suffixes(tensors, told, longest, job or Job())]


@pytest.mark.parametrize(
    "crossed",
    [
        TRUE,
        [[1, 2, 3, 8, 9, 10], [1, 6, 7, 4, 5], [1, 11, 12, 13]],
        [[1, 2, 3, 12, 13], [1, 6, 7, 4, 5], [1, 11, 8, 9, 10]],
    ],
)
def test_ends_return_to_their_sentences(crossed: list[list[int]]) -> None:
    before = copy.deepcopy(crossed)
    assert exchanged(crossed, 8) == TRUE
    assert crossed == before


def test_it_ends_when_the_time_is_up() -> None:
    crossed = [[1, 2, 3, 8, 9, 10], [1, 6, 7, 4, 5]]
    assert exchanged(crossed, 8) != crossed
    assert exchanged(crossed, 8, Job(deadline=0.0)) == crossed


def test_no_sentence_grows_beyond_the_longest() -> None:
    crossed = [[1, 2, 8, 9, 10], [1, 6, 7, 3, 4, 5]]
    assert exchanged(crossed, 6) != crossed
    assert all(len(line) <= 6 for line in exchanged(crossed, 6))
    assert exchanged([[1, 2, 3, 8, 9, 10], [1, 6, 7, 4, 5]], 5) == [
        [1, 2, 3, 8, 9, 10],
        [1, 6, 7, 4, 5],
    ]
