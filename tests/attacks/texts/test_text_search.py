"""Orders of a sentence's words: permutations of the words alone, all different."""

from itertools import permutations

import pytest
import torch

from attacks.texts.text_search import transforms


def orders(first: int, last: int, total: int, count: int = 60, seed: int = 0) -> list[list[int]]:
    rng = torch.Generator().manual_seed(seed)
    found: list[list[int]] = transforms(first, last, total, count, rng).tolist()
    return found


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("words", range(1, 12))
def test_only_words_move_and_no_order_comes_twice(words: int, padding: int) -> None:
    total = words + 2 + padding
    shuffled = orders(1, words, total)
    assert shuffled[0] == list(range(total))
    assert len({tuple(order) for order in shuffled}) == len(shuffled) <= 60
    for order in shuffled:
        assert sorted(order[1 : words + 1]) == list(range(1, words + 1))
        assert order[:1] + order[words + 1 :] == [0, *range(words + 1, total)]


def test_few_words_have_few_orders() -> None:
    assert orders(1, 1, 3) == [[0, 1, 2]]
    assert sorted(orders(1, 2, 4)) == [[0, 1, 2, 3], [0, 2, 1, 3]]
    every = {(0, *order, 4) for order in permutations(range(1, 4))}
    assert {tuple(order) for order in orders(1, 3, 5, 200)} == every


def test_a_single_order_is_that_of_the_sentence() -> None:
    assert orders(1, 6, 8, count=1) == [list(range(8))]


def test_all_four_kinds_occur() -> None:
    words = list(range(1, 9))
    found = {tuple(order[1:9]) for order in orders(1, 8, 10, 400)}
    swaps, moves, turns = set(), set(), {(*words[i:], *words[:i]) for i in range(8)}
    for i in range(8):
        for j in range(8):
            own = words.copy()
            own[i], own[j] = own[j], own[i]
            swaps.add(tuple(own))
            rest = words[:i] + words[i + 1 :]
            moves.add((*rest[:j], words[i], *rest[j:]))
    same = {tuple(words)}
    for kind in (swaps - moves, moves - swaps - turns, turns - moves):
        assert len(found & kind - same) > 2
    spans = found - swaps - moves - turns
    assert spans
    for order in spans:  # three cuts at most: a span of two or more words moved as it is
        breaks = sum(b - a != 1 for a, b in zip((0, *order), (*order, 9), strict=True))
        assert breaks == 3


def test_every_swap_is_drawn_about_equally_often() -> None:
    # Orders 1, 5, 9, ... are swaps; those of two words are all there is beside no change.
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(600):
        shuffled = orders(1, 4, 6, 2, seed)
        counts[tuple(shuffled[-1])] = counts.get(tuple(shuffled[-1]), 0) + 1
    assert len(counts) == 7
    drawn = [count for order, count in counts.items() if order != tuple(range(6))]
    # Each of six has 2 chances in 16 of 600 draws: 75, with a standard error of 8.
    assert 43 < min(drawn) <= max(drawn) < 107


def test_the_generator_decides() -> None:
    assert orders(1, 7, 9, seed=3) == orders(1, 7, 9, seed=3)
    assert orders(1, 7, 9, seed=3) != orders(1, 7, 9, seed=4)
    # Padding has no part in it.
    assert [order[:9] for order in orders(1, 7, 12, seed=3)] == orders(1, 7, 9, seed=3)
