"""What updates show beside sentences and pictures, each beside the same of another client.

The words that a client uses, its classes and their counts, and how many examples and batches there
were need no private example to be judged: where they are read and not guessed, another client's
update shows them no better than chance would.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from experiments.analysis.evidence import Reason, Shown
from experiments.analysis.hits import ERROR, exceeds
from experiments.captures.disclosures import Disclosure
from experiments.wording.catalogue import Said, say, sentence
from experiments.wording.prose import counted, listed
from fedsim.store.capture import CaptureKey, Setting
from server.stated_facts import offered

_EACH = 4
"""Captures whose words have a sentence each; of more, one sentence tells of all."""

_EVEN, _EVEN_ALONE = 0.6, 0.95
"""Largest change of a usual tensor, as a share of all, from which steps look like signs: in several
replies whose largest changes agree, and in one alone. Of networks of two or three layers Adam gives
.71 to 1 for 1 to 20 steps, plain steps and momentum .33 to .93, so that one reply tells only a few
steps. Half of the first changes nothing there, twice of it would find none."""
_ALIKE = 0.1
"""Relative spread of the largest changes of six replies that are bounded alike: Adam .00 to .05 for
up to 20 steps (.16 of one network), plain steps and momentum .5 to 1.9. Half of it misses 20 steps,
twice of it finds them all."""


UNSCORED = Shown(open=(Reason(kind="no_metric"),))
"""Of guesses that nothing proves: without the private rows they have no score."""
_WORDS = Shown(frozenset({"words"}))


class Row(NamedTuple):
    """One row of the page.

    Attributes:
        key: whose update.
        what: ``words``, ``classes``, ``examples``, ``batches`` or ``statistics``.
        value: what was found, or why nothing was.
        source: ``read`` off the update, ``stated`` by the client, ``guessed`` or ``not known``.
        null: the same of another client's update; empty where there is none.
    """

    key: CaptureKey
    what: str
    value: str
    source: str
    null: str = ""


class WordFit(NamedTuple):
    """How many words of a guess moved in an update.

    Attributes:
        words: of the guess, each once, without tokens that mark a text's beginning or end.
        moved: of these, those that moved in the update that it is a guess at.
        other: those that moved in another client's, the null; None if there is none.
    """

    words: int
    moved: int
    other: int | None

    @property
    def borne_out(self) -> bool:
        """Whether more of them moved in its update than chance explains, given the other."""
        moved, other = self.moved, self.other
        return exceeds(moved, other, 1, ERROR) if other is not None else moved > 0

    def __str__(self) -> str:
        if self.other is None:
            return sentence("guess.words_alone", moved=self.moved, words=self.words)
        return sentence("guess.words", moved=self.moved, words=self.words, others=self.other)


@dataclass(frozen=True)
class Findings:
    """What the updates of all captures show by themselves."""

    given: Sequence[Disclosure]

    def of(self, key: CaptureKey) -> Disclosure | None:
        """What one update shows; None if it was not taken in."""
        return next((disclosure for disclosure in self.given if disclosure.key == key), None)

    def other(self, key: CaptureKey, field: str) -> Disclosure | None:
        """Another client's update with this field, of the same round if there is one."""
        others = [
            disclosure
            for disclosure in self.given
            if disclosure.key.client != key.client and getattr(disclosure, field)
        ]
        return min(others, key=lambda disclosure: disclosure.key.round != key.round, default=None)

    def fit(self, key: CaptureKey, tokens: Collection[int]) -> WordFit | None:
        """How the words of a guess lie in two updates; None if no words can be read."""
        mine, other = self.of(key), self.other(key, "words")
        if mine is None or mine.words is None or not tokens:
            return None
        words = set(tokens)
        null = None if other is None or other.words is None else len(words & {*other.words.ids})
        return WordFit(len(words), len(words & {*mine.words.ids}), null)

    def classes_read(self, key: CaptureKey) -> bool:
        """Whether an update, or whoever granted them, tells its classes."""
        mine = self.of(key)
        return mine is None or bool(mine.labels) or "labels" in mine.known

    def shared(self, disclosure: Disclosure) -> int | None:
        """How many of its words moved in another client's update; None without another."""
        fit = self.fit(disclosure.key, disclosure.words.ids if disclosure.words else ())
        return None if fit is None else fit.other

    @property
    def worded(self) -> list[Disclosure]:
        """Updates whose words are shown to be the client's own."""
        return [
            disclosure
            for disclosure in self.given
            if disclosure.words and self.shared(disclosure) != len(disclosure.words.ids)
        ]

    def alone(self, disclosure: Disclosure) -> list[tuple[str, bool]]:
        """Each word of an update, and whether it moved in no other client's."""
        others = {
            token
            for other in self.given
            if other.words and other.key.client != disclosure.key.client
            for token in other.words.ids
        }
        words = disclosure.words
        pairs = zip(words.ids, words.texts, strict=True) if words else ()
        return [(text, token not in others) for token, text in pairs]

    def rows(self) -> Iterator[Row]:
        """All findings, by capture."""
        for disclosure in self.given:
            yield from self._words(disclosure)
            yield from self._classes(disclosure)
            yield from _counts(disclosure)

    def _words(self, disclosure: Disclosure) -> Iterator[Row]:
        key, words = disclosure.key, disclosure.words
        if words is None:
            if disclosure.no_words:
                yield Row(key, "words", disclosure.no_words, "not known")
            return
        shared = self.shared(disclosure)
        null = "" if shared is None else f"{shared:,} of them"
        value = counted(len(words.ids), "word") + (", all that it used" if words.complete else "")
        value += f", and {counted(words.marks, 'mark')} of a text's ends" if words.marks else ""
        yield Row(key, "words", value, "read", null)

    def _classes(self, disclosure: Disclosure) -> Iterator[Row]:
        key, labels = disclosure.key, disclosure.labels
        if not labels:
            if disclosure.no_labels:
                yield Row(key, "classes", disclosure.no_labels, "not known")
            return
        other = self.other(key, "labels")
        null = "" if other is None else f"{100 * _overlap(labels, other.labels):.0f} % alike"
        text = ", ".join(f"{name}: {count}" for name, count in labels.items())
        yield Row(key, "classes", text, "read", null)

    def sentences(self, proven: Collection[CaptureKey]) -> Iterator[tuple[Shown, Said]]:
        """What is shown of words, and its sentence.

        Args:
            proven: captures with a certified example, whose sentences are shown.
        """
        worded = self.worded
        if len(worded) > _EACH:
            yield _WORDS, self._of_several(worded, proven)
        else:
            for disclosure in worded:
                yield _WORDS, self._of_one(disclosure, proven)
        for disclosure in self.given:
            if disclosure.words and disclosure not in worded:
                count = len(disclosure.words.ids)
                update = f"the update of client {disclosure.key.client}"
                yield UNSCORED, say("words.alike", count=count, update=update)

    def _of_one(self, disclosure: Disclosure, proven: Collection[CaptureKey]) -> Said:
        words, key = disclosure.words, disclosure.key
        assert words is not None
        shared = self.shared(disclosure)
        return say(
            "words.all" if words.complete else "words.some",
            count=len(words.ids),
            whose=f"client {key.client}",
            update=f"its update of round {key.round}",
            shared="" if shared is None else say("words.shared", shared=shared),
            beyond="" if key in proven else say("words.unseen"),
        )

    def _of_several(self, worded: Sequence[Disclosure], proven: Collection[CaptureKey]) -> Said:
        sets = [disclosure.words for disclosure in worded if disclosure.words]
        counts = [len(words.ids) for words in sets]
        beside = [self.shared(disclosure) for disclosure in worded]
        shares = [s / n for s, n in zip(beside, counts, strict=True) if s is not None]
        share = 100 * sum(shares) / len(shares) if shares else None
        return say(
            "words.several",
            updates=len(worded),
            captures=len(self.given),
            least=min(counts),
            most=max(counts),
            complete=sum(words.complete for words in sets),
            shared="" if share is None else say("words.shared_of_several", share=share),
            beyond="" if proven else say("words.unseen"),
        )

    def offers(self) -> Iterator[Said]:
        """What clients state of themselves, and what their steps look like, with what to pass."""
        alike: dict[str, list[Disclosure]] = {}
        for disclosure in self.given:
            if known := " ".join(offered(disclosure.stated)):
                alike.setdefault(known, []).append(disclosure)
        for options, those in alike.items() if len(alike) <= _EACH else ():
            values: dict[str, list[Setting]] = {}
            for name, value in (pair for each in those for pair in each.stated.items()):
                values.setdefault(name, []).append(value)
            shown = [name for name in values if offered({name: values[name][0]}) or _private(name)]
            stated = ", ".join(f"{name} = {_span(values[name])}" for name in shown)
            clients = ",".join(str(client) for client in sorted({d.key.client for d in those}))
            only = f" --clients {clients}" if len(alike) > 1 else ""
            yield say("advice.stated", stated=stated, options=options + only)
        if self.signs:
            size = max(disclosure.largest for disclosure in self.given)
            yield say("advice.signs", size=f"{size:.3g}")

    @property
    def signs(self) -> bool:
        """Whether no entry of any reply moved more than the others' largest, as under Adam."""
        sized = [d for d in self.given if d.largest and "optimizer" not in d.known]
        if not sized:
            return False
        low, high = (pick(d.largest for d in sized) for pick in (min, max))
        even = min(d.evenness for d in sized)
        if len(sized) == 1:
            return even >= _EVEN_ALONE
        return even >= _EVEN and high <= low * (1 + _ALIKE)

    def known(self) -> Said | str:
        """What is known already, where whether examples came back is not decided; "" if nothing."""
        facts = []
        if worded := self.worded:
            facts.append(f"the words of {_clients(worded)}")
        if classed := [disclosure for disclosure in self.given if disclosure.labels]:
            facts.append(f"how often each class occurs with {_clients(classed)}")
        if layered := [disclosure for disclosure in self.given if disclosure.layers]:
            facts.append(f"mean and variance of the batches of {_clients(layered)}")
        return say("guess.known", facts=listed(facts)) if facts else ""


def _clients(given: Sequence[Disclosure]) -> str:
    clients = sorted({disclosure.key.client for disclosure in given})
    if len(clients) > _EACH:
        return f"{len(clients)} clients"
    return f"client{'s' * (len(clients) > 1)} {listed([str(client) for client in clients])}"


def _counts(disclosure: Disclosure) -> Iterator[Row]:
    key = disclosure.key
    if disclosure.claimed is not None:
        yield Row(key, "examples", str(disclosure.claimed), "stated")
    if disclosure.batches is not None:
        yield Row(key, "batches", str(disclosure.batches), "read")
    if disclosure.layers:
        value = f"mean and variance of {counted(disclosure.layers, 'layer')}"
        yield Row(key, "statistics", value, "read")


def _private(name: str) -> bool:
    """Whether a metric is of differential privacy."""
    return any(part in name.lower() for part in ("epsilon", "noise", "clip", "grad_norm", "delta"))


def _span(values: Sequence[Setting]) -> str:
    """``1``, or ``0.5 to 2`` of several clients."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values) or min(numbers) == max(numbers):
        return f"{values[0]:.3g}" if isinstance(values[0], float) else str(values[0])
    return f"{min(numbers):.3g} to {max(numbers):.3g}"


def _overlap(mine: dict[str, int], others: dict[str, int]) -> float:
    """The share that two class histograms have in common."""
    totals = sum(mine.values()), sum(others.values())
    return sum(min(n / totals[0], others.get(name, 0) / totals[1]) for name, n in mine.items())
