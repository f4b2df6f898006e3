"""The last token of a causal model's sentence, which is predicted and predicts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor, nn

from attacks.proofs.certificate import MatchedBatch, Prover
from attacks.proofs.token_weights import Predictions, predictions
from attacks.tokens.layout import Layout
from fedsim.tasks.text import TextTask

Line = tuple[int, ...]


def ended(
    prover: Prover, layouts: Iterable[Layout], lines: Sequence[Line]
) -> tuple[Prover, MatchedBatch]:
    """The lines with the token behind each: the end token, if that explains the update.

    Otherwise each line ends with the predicted token whose gradient is nearest to the update, and
    tokens have the weights that the update shows, see ``attacks.proofs.token_weights``. With
    the prover of the layout that explains it, else of the first.

    Args:
        prover: of a language model.
        layouts: that are tried until one explains it; at least one.
        lines: all tokens of each sentence of the batch but the last one.
    """
    task = prover.task
    assert isinstance(task, TextTask)
    end = task.tokenizer.eos_token_id
    closed = [line if end is None else (*line, int(end)) for line in lines]
    nearest: list[tuple[Prover, MatchedBatch]] = []
    for layout in layouts:
        laid = replace(prover, layout=layout)
        usual = list(lines) if layout.trailing else closed
        nearest.append((laid, laid.compare(usual, [-1] * len(usual))))
        if nearest[-1][1].proof.holds:
            return nearest[-1]
    for row, (laid, _) in enumerate([*nearest]):
        read = None if laid.layout.trailing else predictions(laid, lines)
        if read is None:
            continue
        smoothed = replace(laid, smoothing=read.smoothing)
        for match in _tried(smoothed, read.or_ended_by(end)):
            if match.proof.holds or match.proof.error < nearest[row][1].proof.error:
                nearest[row] = (smoothed, match)
            if match.proof.holds:
                return nearest[row]
    return nearest[0]


def _tried(prover: Prover, read: Predictions) -> Iterator[MatchedBatch]:
    """The lines under the weights that were read, and under equal ones."""
    if not read.uniform and (trimmed := _trimmed(prover, read)) is not None:
        yield _chosen(prover, *trimmed)
    yield _chosen(prover, read.lines, read.likely)


def _trimmed(
    prover: Prover, read: Predictions
) -> tuple[list[Line], list[Sequence[int]], Tensor] | None:
    """Lines up to the last token with a label, what may end each, and the weights of all tokens.

    What follows that token leaves no trace. Where the padding on the right has labels, a text ends
    where it begins. None where a line has no label at all.
    """
    if not bool((read.weights > 0).any(1).all()):
        return None
    lines, likely = list[Line](), list[Sequence[int]]()
    for line, ends, row, mask in zip(read.lines, read.likely, read.weights, read.mask, strict=True):
        heeded, last = row.nonzero()[:, 0].tolist(), int(mask.nonzero()[-1])
        size = len(line) + min(0, heeded[-1] - last)  # columns behind the last label
        lines.append(line[:size])
        if heeded[-1] > last:
            likely.append([])
        else:
            likely.append(ends if size == len(line) else line[size : size + 1])
    return lines, likely, nn.functional.pad(read.weights, (1, 0))


def _chosen(
    prover: Prover,
    lines: Sequence[Line],
    likely: Sequence[Sequence[int]],
    weights: Tensor | None = None,
) -> MatchedBatch:
    """The lines with the tokens behind them that fit best, one line after the other."""

    def compared(tried: list[Line]) -> MatchedBatch:
        return prover.compare(tried, [-1] * len(tried) if weights is None else weights)

    best = compared([(*line, *ends[-1:]) for line, ends in zip(lines, likely, strict=True)])
    if not best.proof.holds:
        first = compared([(*line, *ends[:1]) for line, ends in zip(lines, likely, strict=True)])
        best = min(first, best, key=lambda match: match.proof.error)
    improved = True
    while improved:  # a token chosen beside wrong ones behind other lines may be wrong
        improved = False
        for row, (line, ends) in enumerate(zip(lines, likely, strict=True)):
            for token in ends:
                if best.proof.holds:
                    return best
                new = compared([*best.lines[:row], (*line, token), *best.lines[row + 1 :]])
                if new.proof.error < best.proof.error or new.proof.holds:
                    best, improved = new, True
    return best
