"""What a server guesses that does not look at the update."""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attacks.base import Job
from fedsim.columns import decoded, encoded
from fedsim.knowledge import Knowledge
from fedsim.metrics.sentences import overlap
from fedsim.metrics.text import cased_words
from fedsim.metrics.tokens import Tokens
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.tasks.masked_language_modelling import unmasked
from fedsim.types import Batch

_ROWS = 128
"""Auxiliary texts that a guessed text is compared with; with 256 its ROUGE-L differs by .01."""
_SAME_LENGTH = 64
"""Those nearest to a granted length, if lengths are granted."""
_WORDS = 16
"""Frequent tokens that a guessed text is made of; with 32 its ROUGE-L is the same."""


def prior_guess(observation: Observation, task: Task, job: Job) -> Batch:
    """The guess of a batch from the auxiliary rows and the granted knowledge, see ``PriorOnly``."""
    knowledge = observation.knowledge
    count = knowledge.num_examples or 1
    rows = unmasked(job.auxiliary()) if knowledge.auxiliary else None
    if knowledge.labels is not None:
        labels = torch.tensor(knowledge.labels)
    else:
        classes = rows is not None and task.spec.num_classes > 0
        usual = int(rows.labels.mode().values) if rows is not None and classes else -1
        labels = torch.full((count,), usual)
    if task.modality == "image":
        grey = torch.full(task.spec.input_shape, 0.5)
        if rows is None:
            return Batch(grey.repeat(count, 1, 1, 1), labels)
        return Batch(torch.stack([_usual(part, task) for part in _known(rows, knowledge)]), labels)
    if rows is None:
        return Batch(torch.zeros(count, 0).long(), labels, torch.zeros(count, 0).long())
    lengths = knowledge.lengths or (None,) * count
    parts = _known(rows, knowledge)
    texts = [_text(part, task, length) for part, length in zip(parts, lengths, strict=True)]
    mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    return Batch(pad_sequence(texts, batch_first=True), labels, mask)


def prior_lines(
    observation: Observation, task: Task, job: Job
) -> tuple[list[list[int]], list[int]]:
    """The same of texts: token ids without padding, and labels."""
    batch = prior_guess(observation, task, job)
    assert batch.mask is not None
    pairs = zip(batch.inputs, batch.mask, strict=True)
    return [ids[real == 1].tolist() for ids, real in pairs], batch.labels.tolist()


def _known(rows: Batch, knowledge: Knowledge) -> list[Batch]:
    """For each example the auxiliary rows that its class leaves, all where it is not granted."""
    count = knowledge.num_examples or 1
    # Classes and lengths are granted without their order: which belong together is hidden.
    if knowledge.labels is None or (knowledge.lengths is not None and count > 1):
        return [rows] * count
    parts = {label: rows[rows.labels == label] for label in set(knowledge.labels)}
    return [parts[label] if len(parts[label]) else rows for label in knowledge.labels]


def _usual(rows: Batch, task: Task) -> Tensor:
    """The mean image; of a table the most frequent value of each column."""
    if not (columns := task.spec.columns):
        return rows.inputs.mean(0)
    values = decoded(columns, rows.inputs.flatten(1)).mode(0).values
    return encoded(columns, values[None]).reshape(task.spec.input_shape)


def _text(rows: Batch, task: Task, length: int | None) -> Tensor:
    """Token ids ``(token,)`` of the text that is expected to overlap most with a private one."""
    assert rows.mask is not None
    pairs = zip(rows.inputs.tolist(), rows.mask.tolist(), strict=True)
    lines = [tuple(i for i, real in zip(ids, mask, strict=True) if real) for ids, mask in pairs]
    if length is not None:
        lines = sorted(lines, key=lambda line: abs(len(line) - length))[:_SAME_LENGTH]
    lines, longest = lines[:_ROWS], length or max(map(len, lines))
    first = _shared(lines)
    inner = [line[len(first) :] for line in lines]
    last = _shared([line[::-1] for line in inner])[::-1]
    wordy = _with_words({token for line in inner for token in line}, task)
    counted = tuple(tuple(token for token in line if token in wordy) for line in inner)
    text = usual_text(counted, max(0, longest - len(first) - len(last)))
    return torch.tensor((*first, *text, *last)[:longest], dtype=torch.int64)


@lru_cache(maxsize=256)
def usual_text(lines: tuple[Tokens, ...], longest: int) -> Tokens:
    """The text of at most ``longest`` tokens with the largest mean ROUGE-L on tokens to ``lines``.

    It is grown from frequent tokens, the best one at the best place at a time, until none helps.
    """
    frequent = Counter(token for line in lines for token in set(line)).most_common(_WORDS)
    best, value = Tokens(), 0.0
    while len(best) < longest:
        grown = {
            (*best[:place], token, *best[place:])
            for token, _ in frequent
            for place in range(len(best) + 1)
        }
        gains = {text: sum(overlap(text, line) for line in lines) for text in sorted(grown)}
        text = max(gains, key=gains.__getitem__, default=best)
        if gains.get(text, 0.0) <= value:
            break
        best, value = text, gains[text]
    return best


def _with_words(tokens: Collection[int], task: Task) -> set[int]:
    """The tokens that are words or parts of words: signs count in no ROUGE."""
    ids = torch.tensor(sorted(tokens))[:, None]
    single = Batch(ids, torch.full((len(ids),), -1), torch.ones_like(ids))
    pairs = zip(sorted(tokens), task.examples(single).words, strict=True)
    return {token for token, text in pairs if cased_words(text)}


def _shared(lines: Sequence[Tokens]) -> Tokens:
    """The tokens with which all lines begin, such as ``[CLS]``."""
    columns = zip(*lines, strict=False)
    return tuple(column[0] for column in takewhile(lambda c: len(set(c)) == 1, columns))
