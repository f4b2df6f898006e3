"""The beam search with a table of scores, whose best sentences are known in closed form."""

from dataclasses import dataclass, field
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from attacks.base import Job
from attacks.engine.beam import NextWords, Prefixes, Sentence, Spread, grow

WORDS, LONGEST = 5, 5
ALL = WORDS**LONGEST
SEEDS = pytest.mark.parametrize("seed", range(5))


@dataclass
class Table:
    """Scores each word by its place and the word before it; the last word ends a sentence.

    Attributes:
        scores: ``(place, word before, word)``.
        width: prefixes kept.
        tried: prefixes weighed.
        order: of the words as they are offered.
        scored: number of prefixes that were scored, by their length.
    """

    scores: Tensor
    width: int = ALL
    tried: int = ALL
    order: list[int] = field(default_factory=lambda: [*range(WORDS)])
    scored: dict[int, int] = field(default_factory=dict)

    def score(self, prefixes: Prefixes) -> NextWords[Sentence]:
        self.scored[prefixes.length] = len(prefixes.ids)
        gain = self.scores[prefixes.length, prefixes.ids[:, -1]][:, self.order]
        words = torch.tensor(self.order, device=gain.device).expand(gain.shape)
        total = (prefixes.score[:, None] + gain).masked_fill(words == WORDS - 1, -torch.inf)
        return NextWords(words, total, self.finish(prefixes), self.tried, self.width)

    def finish(self, prefixes: Prefixes) -> list[Sentence]:
        ends = prefixes.score + self.scores[prefixes.length, prefixes.ids[:, -1], WORDS - 1]
        pairs = zip(ends.tolist(), prefixes.ids.tolist(), strict=True)
        return [Sentence(end, (*ids, WORDS - 1)) for end, ids in pairs]

    def extend(
        self, prefixes: Prefixes, words: NextWords[Sentence], rows: Tensor, columns: Tensor
    ) -> Prefixes:
        ids = prefixes.longer(rows, words.ids[rows, columns])
        return Prefixes(ids, words.score[rows, columns])


def table(seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(LONGEST + 1, WORDS, WORDS, generator=rng, dtype=torch.float64)


def search(
    scorer: Table,
    *,
    size: int = 1,
    longest: int = LONGEST,
    job: Job | None = None,
    stale: float = torch.inf,
    spread: Spread | None = None,
) -> list[Sentence]:
    """The sentences behind ``size`` zeros."""
    device = scorer.scores.device
    ids = torch.zeros(1, size, dtype=torch.int64, device=device)
    start = Prefixes(ids, torch.zeros(1, dtype=torch.float64, device=device))
    return grow(scorer, start, longest, job or Job(), stale=stale, spread=spread)


def every(scores: Tensor) -> list[Sentence]:
    """All sentences, by their definition."""
    lines = [
        (0, *words, WORDS - 1)
        for size in range(LONGEST)
        for words in product(range(WORDS - 1), repeat=size)
    ]
    gains = [[float(scores[i, a, b]) for i, (a, b) in enumerate(pairwise(ids), 1)] for ids in lines]
    return [Sentence(sum(gain), ids) for gain, ids in zip(gains, lines, strict=True)]


@SEEDS
def test_a_beam_that_holds_all_prefixes_finds_every_sentence(seed: int) -> None:
    scores = table(seed)
    found, expected = sorted(search(Table(scores))), sorted(every(scores))
    assert [sentence.ids for sentence in found] == [sentence.ids for sentence in expected]
    nats = torch.tensor([sentence.score for sentence in found])
    torch.testing.assert_close(nats, torch.tensor([sentence.score for sentence in expected]))


@SEEDS
def test_one_prefix_for_each_last_word_is_viterbi(seed: int) -> None:
    scores = table(seed)
    best = max(search(Table(scores, WORDS), spread=Spread(-1, WORDS)))
    assert best.ids == max(every(scores)).ids


@SEEDS
def test_a_wider_beam_is_never_worse_where_each_word_speaks_for_itself(seed: int) -> None:
    scores = table(seed)[:, :1].expand(-1, WORDS, -1)
    best = [max(search(Table(scores, width))) for width in (1, 2, 4, 16, ALL)]
    assert {sentence.ids for sentence in best} == {max(every(scores)).ids}


@SEEDS
@pytest.mark.parametrize("width", [1, 3, 10])
def test_the_order_of_the_words_changes_nothing(seed: int, width: int) -> None:
    order = torch.randperm(WORDS, generator=torch.Generator().manual_seed(seed)).tolist()
    plain, shuffled = Table(table(seed), width), Table(table(seed), width, order=order)
    assert search(plain) == search(shuffled)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_device_changes_nothing() -> None:
    here, there = search(Table(table(0), 3)), search(Table(table(0).cuda(), 3))
    assert [sentence.ids for sentence in here] == [sentence.ids for sentence in there]


@pytest.mark.parametrize("width", [1, 3, 6, ALL])
def test_each_prefix_that_is_kept_is_scored_once(width: int) -> None:
    scorer = Table(table(0), width)
    search(scorer)
    expected, count = {}, 1
    for length in range(1, LONGEST):
        expected[length] = count
        count = min(width, count * (WORDS - 1))
    assert scorer.scored == expected


class Reversed(Table):
    """Finds with all care the opposite of what it thought."""

    def extend(
        self, prefixes: Prefixes, words: NextWords[Sentence], rows: Tensor, columns: Tensor
    ) -> Prefixes:
        longer = super().extend(prefixes, words, rows, columns)
        return Prefixes(longer.ids, -longer.score)


def test_what_is_weighed_with_care_is_chosen_again() -> None:
    scores = table(0)
    likely = scores[1, 0, : WORDS - 1].argsort(descending=True).tolist()
    found = search(Reversed(scores, 2, 3), longest=2)
    assert [sentence.ids[1] for sentence in found if len(sentence.ids) == 3] == likely[2:0:-1]


def test_a_search_ends_after_lengths_without_a_better_sentence() -> None:
    found = search(Table(torch.full_like(table(0), -1.0)), stale=1)
    assert {len(sentence.ids) for sentence in found} == {2, 3, 4}


def test_a_search_whose_work_is_done_keeps_what_it_found() -> None:
    job = Job(work=3)

    class Working(Table):
        def score(self, prefixes: Prefixes) -> NextWords[Sentence]:
            job.done += len(prefixes.ids)
            return super().score(prefixes)

    found = search(Working(table(0)), job=job)
    assert {len(sentence.ids) for sentence in found} == {2, 3, 4}
    assert job.done == 1 + (WORDS - 1)


class Given(Table):
    """Grows to the same eight prefixes, which have two words."""

    def extend(
        self, prefixes: Prefixes, words: NextWords[Sentence], rows: Tensor, columns: Tensor
    ) -> Prefixes:
        ids = torch.tensor([[0, word, i] for word in (1, 2) for i in range(4)])
        return Prefixes(ids, torch.arange(8.0, 0, -1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        (None, [(1, 0), (1, 1), (1, 2), (1, 3)]),
        (Spread(1, 2), [(1, 0), (1, 1), (2, 0), (2, 1)]),
        (Spread(1, 4), [(1, 0), (2, 0)]),
        (Spread(1, 4, fill=True), [(1, 0), (2, 0), (1, 1), (1, 2)]),
        (Spread(1, 4, shortest=4), [(1, 0), (1, 1), (1, 2), (1, 3)]),
        (Spread(1, 4, longest=2), [(1, 0), (1, 1), (1, 2), (1, 3)]),
    ],
)
def test_prefixes_are_spread_over_a_word(
    spread: Spread | None, expected: list[tuple[int, int]]
) -> None:
    found = search(Given(table(0), 4, 5), size=2, longest=3, spread=spread)
    assert [sentence.ids[1:3] for sentence in found if len(sentence.ids) == 4] == expected
