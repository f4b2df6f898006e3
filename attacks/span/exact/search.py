"""The search for sentences whose every token lies in the span, and their proof."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.proofs.certificate import Prover, proven
from attacks.proofs.last_tokens import ended
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.attention_inputs import AttentionInputs
from attacks.tokens.candidates import Candidates
from attacks.tokens.exact_traces import Traces, read_traces
from attacks.tokens.layout import RIGHT, Layout, batch_of, left_layouts, trailing_layouts
from attacks.tokens.sine_descent import SineDescent
from attacks.tokens.span_membership import SpanSentence, SpanTest, best_test, grown
from attacks.tokens.word_clusters import WordClusters
from attacks.tokens.word_places import WordPlaces
from fedsim.errors import CannotAttack

_BEAM = 256  # prefixes of a causal model kept at each position
_STARTS = 40  # most random sentences from which an encoder's descent starts
_RESTARTS = 3
"""Tokens tried as those behind which positions restart."""
_MORE = "the gradient spans more tokens than were found, as of texts packed into a row would"
_TIGHTER = 0.1
"""Factor on the lowest limit in a search before, kept where it proves its lines: texts of few
different tokens, as Cyrillic ones in bytes, lie near others at 1e-4, and exact ones at 1e-6."""
_RETRY = 3
"""Factor on that limit in a second search, where the first proves nothing."""


@dataclass(frozen=True)
class ExactSearch:
    """Searches the span of one update, and proves what it finds.

    Attributes:
        model: under attack; its update has to be a multiple of a gradient.
        rng: the only source of randomness.
        job: ends the search when its time is up.
    """

    model: AttackedModel
    rng: torch.Generator
    job: Job

    def run(self) -> Reconstruction:
        """The sentences.

        Raises:
            CannotAttack: the span is full, or the client's optimizer hides it.
        """
        traces = read_traces(self.model)
        self._check_rank(traces)
        test, segments = best_test(self.model, traces.before), traces.segments
        test = replace(test, layers=test.layers.of_types(segments))
        behind = test.subspace.rank
        shortlist = traces.shortlist(self.job, behind)
        model = self.model
        layout = Layout(segments=segments)
        prover = Prover(model.observation, model.task, model.network, traces.weights, layout)
        guess: Reconstruction | None = None
        causal = traces.layers.causal and shortlist.clear
        limits = (*[_TIGHTER] * shortlist.lowest, 1, _RETRY) if causal else (1,)
        for wider in limits:
            sentences = self._search(test, shortlist, wider)
            sentences = sentences or ranked(shortlist, self._count or 1)
            expired = self.job.expired
            new = self._proven(prover, test, traces, sentences)
            if wider < 1 and not (new.certified or expired):
                continue
            if guess is None or new.certified:
                guess = replace(new, expired=expired)
            if expired or guess.certified:
                break
        assert guess is not None
        guess, packed = self._unpacked(guess)
        notes = filter(None, (shortlist.note, guess.note, packed, self._lack(guess)))
        return replace(guess, note="; ".join(notes))

    def tells_half(self, guess: Reconstruction) -> bool:
        """Whether the span singles out half of the batch's sentences."""
        return 2 * self._read(guess) >= (self._count or 1)

    @property
    def _count(self) -> int | None:
        return self.model.observation.knowledge.num_examples

    @property
    def _one_step(self) -> bool:
        known = self.model.observation.knowledge
        return self.model.observation.kind == "gradient" or known.local_steps == 1

    def _check_rank(self, traces: Traces) -> None:
        most, rank = (self._count or 0) * self.model.task.most_tokens, traces.before.rank
        if self._count is not None and self._one_step and rank > most:
            raise CannotAttack(
                f"the gradient of {traces.layers.tokens.name!r} has rank {rank}, more than the "
                f"{most} tokens of the batch",
                "Noise, signs, pruning or weight decay fill the span.",
            )

    def _read(self, guess: Reconstruction) -> int:
        """Number of sentences with words that the span singles out."""
        pairs = zip(
            guess.confidence or (), self.model.task.examples(guess.guess).tokens, strict=True
        )
        return sum(bool(line) and level != "guess" for level, line in pairs)

    def _lack(self, guess: Reconstruction) -> str:
        """What the guess has not of a batch of known size, one clause."""
        read = self._read(guess)
        if self._count is None or read >= self._count:
            return ""
        return f"{read} of {self._count} examples found"

    def _unpacked(self, guess: Reconstruction) -> tuple[Reconstruction, str]:
        """The texts of a language model's rows that hold several, each seeing itself alone.

        Behind its last token each may predict the first token of the next one.
        """
        task, batch, count = self.model.task, guess.guess, self._count
        proven = guess.certified and len({*(guess.confidence or ())}) == 1
        if task.spec.kind != "language-modelling" or not proven or not count or count >= len(batch):
            return guess, ""
        assert batch.mask is not None
        lines = [
            [token for token, real in zip(ids, mask, strict=True) if real]
            for ids, mask in zip(batch.inputs.tolist(), batch.mask.tolist(), strict=True)
        ]
        end, firsts = task.tokenizer.eos_token_id, {line[0] for line in lines}
        chained = sum(line[-1] in firsts for line in lines) >= len(lines) - count
        lines = [
            line[:-1] if line[-2:-1] == [end] or (chained and line[-1] in firsts) else line
            for line in lines
        ]
        rows = f"{count} row{'s' * (count > 1)}"
        note = f"{len(lines)} texts that do not see one another, packed into {rows}"
        return replace(guess, guess=batch_of(lines, task, [-1] * len(lines))), note

    def _search(self, test: SpanTest, shortlist: Candidates, wider: float) -> list[SpanSentence]:
        if not shortlist.clear:
            return []
        if test.layers.causal:
            return self._grown(test, shortlist, wider * shortlist.limit)
        return self._descended(test, shortlist)

    def _grown(self, test: SpanTest, shortlist: Candidates, limit: float) -> list[SpanSentence]:
        """Sentences of a causal model; padding on the left lets each begin at another place."""
        tokens, sentences = shortlist.tokens, list[SpanSentence]()
        alone = shortlist.everywhere or shortlist.public
        for place in range(1 if alone else len(tokens)):
            placed = test.placed_at(shortlist.begin + place)
            sentences += grown(
                placed, tokens[place:], limit, _BEAM, self.job, public=shortlist.public
            )
            if self.job.expired or (sentences and self._filled(test, sentences)):
                break
            if place == 0 and (rows := self._packed(test, shortlist, limit, sentences)):
                return rows
        return sentences

    def _packed(
        self, test: SpanTest, shortlist: Candidates, limit: float, sentences: list[SpanSentence]
    ) -> list[SpanSentence]:
        """Rows of texts that see those before them, their positions restarting; none if no such.

        Some collators reset the positions of a packed row and leave its attention as it is. They
        restart behind an end token, or behind the last token that is in the span as it is placed.
        """
        if not test.layers.placed:
            return []
        end = self.model.task.tokenizer.eos_token_id
        ends = [end] if any(end in sentence.ids[1:] for sentence in sentences) else []
        ends += [sentence.ids[-1] for sentence in sentences if sentence.in_span]
        words = torch.cat(list(shortlist.tokens)).unique()
        most = min(self.model.task.most_tokens, test.subspace.rank + 1)
        tokens = [shortlist.tokens[0], *[words] * (most - 1)]
        for last in list(dict.fromkeys(ends))[:_RESTARTS]:
            placed = test.placed_at(0, int(last))
            rows = grown(placed, tokens, limit, _BEAM, self.job, public=shortlist.public)
            if rows and self._fits(test, rows) and self._filled(test, rows):
                return rows
        return []

    def _fits(self, test: SpanTest, rows: list[SpanSentence]) -> bool:
        """Whether rows have no more inputs than the span has dimensions, but for their ends.

        More lie in a span that is too coarse to tell tokens apart, as of adapters of a low rank.
        """
        inputs = {row.ids[:end] for row in rows for end in range(1, len(row.ids) + 1)}
        return len(inputs) <= test.subspace.rank + (self._count or 1)

    def _descended(self, test: SpanTest, shortlist: Candidates) -> list[SpanSentence]:
        """Sentences of an encoder."""
        ends, lengths = self.model.task.tokens([""])[0], self.model.observation.knowledge.lengths
        if len(ends) < 2:
            raise CannotAttack(
                "the tokenizer appends no end token to a sentence, which the descent of an "
                "encoder needs",
                "Choose a model whose tokenizer does, as BERT's.",
            )
        tokens, sentences = shortlist.tokens, list[SpanSentence]()
        usual = any(ends[-1] in words.tolist() for words in tokens[1:])
        for stop in ends[-1:] if usual else tokens[-1].tolist():  # else the application adds none
            possible = [
                position + 1
                for position, words in enumerate(tokens)
                if position
                and stop in words.tolist()
                and position + 1 in (lengths or [position + 1])
            ]
            if not possible:
                continue
            # The end token stands inside pairs, too: first where types tell of them.
            typed = test.layers.segments is not None
            several = usual and len(possible) > 1
            for inside in (False, True)[typed and several : 1 + several]:
                descent = self._descent(test, tokens, stop, possible, usual, inside)
                descent.run(_STARTS, self._count, self.rng, self.job)
                more = [sentence for sentence in descent.sentences if sentence.in_span or usual]
                seen = {sentence.ids for sentence in sentences}
                sentences += [sentence for sentence in more if sentence.ids not in seen]
                if descent.complete(self._count) or (
                    self._count is None and any(sentence.in_span for sentence in sentences)
                ):
                    break
        return sentences

    def _descent(
        self,
        test: SpanTest,
        tokens: list[Tensor],
        stop: int,
        possible: list[int],
        usual: bool,
        inside: bool,
    ) -> SineDescent:
        """A descent among the candidates, with what query and key tell of words that are alone."""
        if inside or test.layers.segments is not None:
            return SineDescent(test, tokens, stop, possible, inside=inside)
        clusters = None
        if usual and possible:
            update = self.model.observation.update()
            places = WordPlaces.of(test.layers, update, tokens, stop)
            clusters = WordClusters.of(test.layers, update, tokens, stop, self.job, places)
        known = AttentionInputs.of(test.layers, test.layer, tokens, self.job)
        return SineDescent(replace(test, attention=known), tokens, stop, possible, clusters)

    def _proven(
        self, prover: Prover, test: SpanTest, traces: Traces, sentences: list[SpanSentence]
    ) -> Reconstruction:
        """The sentences in the layout that explains the gradient, else in the usual one."""
        if self.model.task.spec.kind != "language-modelling":
            return proven(prover, sentences)
        layouts = self._layouts(test, traces, sentences)
        best, known = ended(prover, layouts, [sentence.ids for sentence in sentences])
        end = self.model.task.tokenizer.eos_token_id
        whole = [
            sentence._replace(ids=ids, predicted=ids[:-1] == sentence.ids and ids[-1] != end)
            for sentence, ids in zip(sentences, known.lines, strict=True)
        ]
        guess = proven(best, whole, known)
        if guess.certified or not self._one_step:
            return guess
        note = self._crowded(sentences) if self._filled(test, sentences) else _MORE
        return replace(guess, note="; ".join(filter(None, (guess.note, note))))

    def _crowded(self, sentences: list[SpanSentence]) -> str:
        """That a span which they fill holds more lines than there are rows, one clause."""
        lines = sum(sentence.in_span for sentence in sentences)
        if not self._count or lines <= self._count:
            return ""
        rows = f"{self._count} row{'s' * (self._count > 1)}"
        return (
            f"{lines} lines lie in the span of {rows}: texts packed into a row, or a span too "
            "coarse to tell them apart"
        )

    def _layouts(
        self, test: SpanTest, traces: Traces, sentences: list[SpanSentence]
    ) -> Iterator[Layout]:
        """How the texts may have been set: on the left, a pad leaves a direction of its own.

        So does one on the right whose label is not hidden.
        """
        places = [sentence.place for sentence in sentences]
        restarts = {sentence.restarts for sentence in sentences} - {None}
        yield from (Layout(restarts=end) for end in restarts)
        if not any(places):
            yield RIGHT
            if self._one_step:
                longest = max(len(sentence.ids) for sentence in sentences)
                shown, rank = traces.last_place(), test.subspace.rank
                least = shown or -(-rank // len(sentences))
                yield from trailing_layouts(
                    longest, least, self.model.task.most_tokens, learned=bool(shown)
                )
        sure = self._one_step and all(sentence.in_span for sentence in sentences)
        blind = test.layer is test.layers.contexts[0]  # the attention of a pad is 0
        if any(places) or (sure and (blind or not self._filled(test, sentences))):
            yield from left_layouts(places, learned=not test.layers.everywhere)

    def _filled(self, test: SpanTest, sentences: list[SpanSentence]) -> bool:
        """Whether the sentences account for the whole span."""
        inputs = [
            test.placed_at(sentence.place, sentence.restarts).inputs(sentence.ids)
            for sentence in sentences
        ]
        return test.subspace.filled(torch.cat(inputs))


def ranked(shortlist: Candidates, count: int) -> list[SpanSentence]:
    """Sentences of the nearest tokens at each position, where no other is found."""
    return [
        SpanSentence(
            tuple(int(near[min(i, len(near) - 1)]) for near in shortlist.tokens if len(near)),
            1.0,
            False,
        )
        for i in range(count)
    ]
