"""The rows that ``python -m benchmarks ranks`` prints, one per treatment and matrix."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.ranking import MATRICES
from experiments.analysis.statistics import summary

TOP = 50
_READ, _LISTED = 0.95, 0.5  # least shares of words that are first, and that are in the top


@dataclass(frozen=True)
class Subject:
    """Heading of a group of rows.

    Attributes:
        words: private tokens that are ranked; starts and ends are public.
        rms_*: median over the batches of the undefended gradient's root mean square.
    """

    model: str
    dataset: str
    split: str
    defense: str
    sentences: int
    batch_size: int
    words: int
    vocabulary: int
    width: int
    rms_q: float
    rms_v: float
    rms_all: float

    def text(self) -> str:
        """For a terminal, with the heads of the columns."""
        return (
            f"{self.model} on {self.dataset} {self.split}, defense {self.defense}: "
            f"{self.sentences} sentences in batches of {self.batch_size}, {self.words} words "
            f"among {self.vocabulary}, width {self.width}, rms of the gradient: "
            f"W_Q {self.rms_q:.1e}, W_V {self.rms_v:.1e}, all {self.rms_all:.1e}\n"
            f"{'treatment':<20} {'of':<4} {'median':>8} {'worst':>8} {'first':>6} "
            f"{'95 %':>11} {f'top {TOP}':>6}  {'words':>5} {'95 %':>11} {'exact':>5} {'proven':>6} "
            f"{'agree':>5} {'false':>5} {'CPU s':>5}  fails"
        )


@dataclass(frozen=True)
class RankRow:
    """One treatment seen through one matrix.

    Attributes:
        matrix: one of ``MATRICES``.
        median: rank of the true token, 1 for the nearest; half the vocabulary where nothing is
            known.
        first: share of the tokens with rank 1; ``low`` and ``high`` its 95 % interval, clustered by
            batch.
        top: share of the tokens among the nearest ``TOP``.
        words: mean F-measure of the words of each sentence and its guess by the span attack (as
            ROUGE-1, of tokens), 0 where it refuses; ``words_low`` and ``words_high`` as for
            ``first``. The attack reads all three matrices, so that it stands in their row alone.
        exact: share of the sentences that it finds whole.
        certified: share of the sentences that it calls certified.
        consistent: share of the sentences that it calls consistent.
        false: sentences that it calls either, and that are not in the batch.
        seconds: mean CPU time of the attack on a batch.
        fails: what does not work, in words; empty where everything does.
    """

    treatment: str
    matrix: str
    median: float
    worst: float
    first: float
    low: float | None
    high: float | None
    top: float
    fails: str
    words: float | None = None
    words_low: float | None = None
    words_high: float | None = None
    exact: float | None = None
    certified: float | None = None
    consistent: float | None = None
    false: int | None = None
    seconds: float | None = None

    def text(self) -> str:
        """For a terminal."""
        interval = _interval(self.low, self.high)
        attack = " " * 48
        if self.exact is not None:
            attack = (
                f"{self.words:>5.2f} {_interval(self.words_low, self.words_high):>11} "
                f"{self.exact:>5.2f} {self.certified:>6.2f} {self.consistent:>5.2f} "
                f"{self.false:>5} {self.seconds:>5.1f}"
            )
        return (
            f"{self.treatment:<20} {self.matrix:<4} {self.median:>8.1f} {self.worst:>8.0f} "
            f"{self.first:>6.2f} {interval:>11} {self.top:>6.2f}  {attack}  {self.fails}"
        ).rstrip()


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"{low:.2f} - {high:.2f}"


@dataclass(frozen=True)
class RankOutcome:
    """Number of sentences of a batch that the span attack found, and how it ended.

    Attributes:
        words: F-measure of the words of each sentence; empty if the attack refused.
        seconds: CPU time.
    """

    sentences: int
    exact: int = 0
    certified: int = 0
    consistent: int = 0
    false: int = 0
    words: tuple[float, ...] = ()
    seconds: float = 0.0
    refusal: str = ""
    expired: bool = False


def reason(message: str) -> str:
    """Short reason for the refusal of an attack: the text up to its first comma."""
    return message.partition(", ")[0]


def rank_row(
    treatment: str,
    matrix: str,
    ranks: Sequence[float],
    owners: Sequence[int],
    outcomes: Sequence[RankOutcome],
) -> RankRow:
    """Sum up the ranks of all words, and for all matrices together the span attack too."""
    first = [float(rank <= 1) for rank in ranks]
    share = summary(first, owners, better="higher")
    top = statistics.mean(rank <= TOP for rank in ranks)
    fails = [] if share.mean >= _READ else ["shortlist only"] if top >= _LISTED else ["lost"]
    found = RankRow(
        treatment,
        matrix,
        statistics.median(ranks),
        max(ranks),
        share.mean,
        share.low,
        share.high,
        top,
        "; ".join(fails),
    )
    if matrix != MATRICES[-1]:
        return found
    sentences = sum(outcome.sentences for outcome in outcomes)
    words = [word for outcome in outcomes for word in outcome.words or [0.0] * outcome.sentences]
    batches = [number for number, one in enumerate(outcomes) for _ in range(one.sentences)]
    overlap = summary(words, batches, better="higher")
    return replace(
        found,
        fails="; ".join([*fails, *complaints(outcomes)]),
        words=overlap.mean,
        words_low=overlap.low,
        words_high=overlap.high,
        exact=sum(outcome.exact for outcome in outcomes) / sentences,
        certified=sum(outcome.certified for outcome in outcomes) / sentences,
        consistent=sum(outcome.consistent for outcome in outcomes) / sentences,
        false=sum(outcome.false for outcome in outcomes),
        seconds=statistics.mean(outcome.seconds for outcome in outcomes),
    )


def complaints(outcomes: Sequence[RankOutcome]) -> Iterator[str]:
    """Refusals, wrong results and timeouts of the span attack, in this order."""
    refused = Counter(outcome.refusal for outcome in outcomes if outcome.refusal)
    count = len(outcomes)
    if refused:
        yield f"span refuses {refused.total()} of {count}: {refused.most_common(1)[0][0]}"
    tried = [outcome for outcome in outcomes if not outcome.refusal]
    if wrong := sum(one.exact < one.sentences for one in tried):
        yield f"span is wrong on {wrong} of {count}"
    if expired := sum(one.expired for one in tried):
        yield f"out of time on {expired} of {count}"
