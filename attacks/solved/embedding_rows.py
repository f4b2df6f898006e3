"""The words of a text and their order from the rows of the embedding gradients."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

from attacks.base import Attack, Job, Reconstruction
from attacks.feasibility import Feasibility, Prospect
from attacks.observed.declared import declared, granted_noise
from attacks.observed.labels import find_head, infer_label
from attacks.observed.prior import prior_lines
from attacks.observed.word_rows import is_tied, noise_variance, standing_out, tables
from attacks.proofs.certificate import MatchedBatch, Prover
from attacks.proofs.last_tokens import ended
from attacks.proofs.verdict import certificate
from attacks.tokens.layout import Layout, batch_of, left_layouts
from attacks.tokens.segments import Segments, type_table, types_by_place
from fedsim.defenses.base import Distortion
from fedsim.errors import CannotAttack
from fedsim.models.embeddings import embedding_names
from fedsim.records import Certificate
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task
from fedsim.types import Batch

_HIDDEN = "no row of the word embeddings stands out of the noise; the most frequent words"
_MISSED_ROW = 0.01
"""Largest distance of a word row from what a sentence makes of the position rows, in units of their
smallest singular value; below one half, no other sentence comes as near."""
_UNPRUNED_SHARE = 0.99
"""Least share of nonzero coordinates in position rows that were not pruned; with fewer, no sentence
is read."""


@dataclass(frozen=True)
class EmbeddingRows(Attack):
    """Read the tokens of a batch off the word rows and their order off the position rows.

    The token set is that of FILM (Gupta et al. 2022). The order is ours: with ``delta_p`` the loss
    gradient at input position ``p``, row ``p`` of the position gradient is the sum of ``delta_p``
    over the batch, and row ``v`` of the word gradient its sum over the places of token ``v``. For
    one example ``G_word = X^T G_position`` with one-hot ``X (position, token)``, and least squares
    yields the sentence in order, repeated tokens included. FILM searches with a language model.

    The attack needs trainable word embeddings, and position embeddings for the order, but no
    labels, lengths or eval mode. Updates by SGD and momentum serve as well as gradients. Adam and
    AdamW send roughly the signs, which suffice for the set and mostly for the order. Weight decay
    moves each row along itself; it is measured on the median row and removed, but decay inside
    Adam's gradient spoils the set. A tied head (GPT-2) fills every row with a mixture of final
    hidden states, so that both tables are projected off the span of these. This requires a gradient
    without noise, signs or pruning (weights are too coarse) and fewer predicted tokens than the
    width, or half the width for the order. The last token of a causal model and padding have no
    gradient. The text of a masked language model is read as the model saw it, with its masks.

    Confidence is ``in_span`` if one sentence explains both tables: no word row is missed by more
    than a hundredth of the smallest singular value of ``G_position``. Two arrangements differ by at
    least that value in some row, so that no other one fits; copies of one sentence cannot be told
    from one. It is ``certified`` if the gradient of that sentence is the observed one, with the
    class that the head tells, or the token that the end of a causal model's sentence predicts. Rows
    with zeros were pruned and are neither, as whole tokens may be lost. For several examples the
    confidence is ``guess``: it holds exactly the tokens found, at positions from ``G_position
    pinv(G_word)``, but their assignment to sentences is unknown. The objective, for one example, is
    the miss in units of the smallest singular value.

    Attributes:
        adaptive: take the noise of a gradient from the granted defense, which tells it where most
            rows are of the batch; estimated where the defense adds none. Where noise hides all
            rows the guess is that of ``PriorOnly``.
    """

    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})
    estimates: ClassVar[frozenset[Distortion]] = frozenset({"noise"})
    uses: ClassVar[frozenset[Distortion] | None] = frozenset({"scale", "noise"})
    adaptive: bool = False

    def feasible(self, prospect: Prospect) -> Feasibility:
        """Tokens compared with the width: the order needs one dimension for each token."""
        names, counts = embedding_names(prospect.network), prospect.tokens
        if names.word is None or names.word not in prospect.sent:
            return Feasibility("red", "tokens", counts, None, "the word embeddings are not sent")
        width = prospect.network.get_parameter(names.word).shape[1]
        tied = is_tied(prospect.network)
        ordered = max(prospect.examples) == 1 and names.position in prospect.sent
        partly = "" if ordered else "which words, not in which sentence or order"
        # The rows of a tied head take one dimension for each token, and so do the positions.
        limit = (width - 1 if partly else width // 2) if tied else width
        feasibility = prospect.judge("tokens", counts, limit, partly, minds_dropout=False)
        if feasibility.colour == "red" and not tied:
            return replace(feasibility, colour="amber", reason="which words, not in which order")
        return feasibility

    def guess(
        self, observation: Observation, task: Task, rng: torch.Generator, job: Job
    ) -> Reconstruction:
        """The sentence of a single example, or the words of a batch; nothing is random."""
        del rng
        network, spec = task.model(observation.sent, device=job.device), task.spec
        count, lengths = observation.knowledge.num_examples, observation.knowledge.lengths
        words, positions = tables(observation, network, job.device)
        noise = self._declared(observation) or noise_variance(words)
        tokens = standing_out(words, noise)
        # The start token is in every text, and stands out where noise hides all words.
        wordless = {*spec.special_ids}.issuperset(tokens.tolist())
        if wordless and self.adaptive:
            lines, classes = prior_lines(observation, task, job)
            return Reconstruction(batch_of(lines, task, classes), note=_HIDDEN)
        most = len(words) if count is None else count * spec.input_shape[0]
        if not 0 < len(tokens) <= most:
            raise CannotAttack(
                f"{len(tokens)} rows of the word embeddings stand out, and the batch holds 1 to "
                f"{most} tokens",
                "Noise hides rows; weight decay inside Adam, or pruning a tied head, shows false "
                "ones. Choose an attack that reads other layers.",
            )
        places = standing_out(positions, noise)
        words, positions = words[tokens], positions[places]
        order, miss = sentence(words, positions) if count in {None, 1} else ([], float("inf"))
        # Pruning may remove a token together with its position, and the rest is still consistent.
        # It betrays itself by a gap between positions, or by zeros in the other rows.
        unpruned = bool((positions != 0).double().mean() > _UNPRUNED_SHARE)
        gapless = bool((places.diff() == 1).all())
        certain = unpruned and gapless and miss <= _MISSED_ROW
        if count == 1 or certain:
            lines = [order]
        else:
            # The last token of a causal model predicts nothing and leaves no trace in any row.
            unseen = 1 if spec.kind == "language-modelling" else 0
            seen = None if lengths is None else [length - unseen for length in lengths]
            lines, miss = arrangement(words, positions, count, seen), float("inf")
        labels = torch.full((len(lines),), -1)
        if len(lines) == 1 and spec.num_classes:
            labels[0] = _label(observation, network)
        ids = [tokens.cpu()[line] for line in lines]
        confidence: Certificate = "guess"
        segments = None
        if certain:
            start = int(places[0]) if len(places) else 0
            segments = _segments(observation, network, positions)
            match = _match(observation, task, network, tuple(ids[0].tolist()), start, segments)
            confidence = certificate(match.proof, "in_span")
            if match.proof.holds:
                ids = [torch.tensor(line) for line in match.lines]
                labels = torch.tensor(match.labels)
        inputs = pad_sequence(ids, batch_first=True, padding_value=spec.pad_id or 0)
        return Reconstruction(
            Batch(
                inputs,
                labels,
                pad_sequence([torch.ones_like(line) for line in ids], batch_first=True),
                None if segments is None else segments.of(inputs),
            ),
            objective=miss if miss < float("inf") else None,
            confidence=(confidence,) * len(ids),
        )

    def _declared(self, observation: Observation) -> float:
        """Variance of the granted defense's noise; 0 where it is not asked for or not known."""
        if not self.adaptive:
            return 0.0
        declared(observation)  # refuses where the defense is not granted
        std = granted_noise(observation) if observation.kind == "gradient" else None
        return (std or 0.0) ** 2


def _segments(observation: Observation, network: nn.Module, positions: Tensor) -> Segments | None:
    """The type of each token of a single text, such as those of a pair; None if all are 0."""
    name = type_table(network)
    if name not in observation.received:
        return None
    return types_by_place(observation.update((name,))[name], positions)


def _match(
    observation: Observation,
    task: Task,
    network: nn.Module,
    line: tuple[int, ...],
    start: int,
    segments: Segments | None,
) -> MatchedBatch:
    """What the gradient of the sentence proves, whose rows of positions begin at ``start``."""
    names = embedding_names(network)
    first = [name for name in (names.word, names.position) if name in observation.received]
    prover = Prover(observation, task, network, first, Layout(segments=segments))
    if task.spec.kind == "language-modelling":
        if not start:
            return ended(prover, [prover.layout], [line])[1]
        # Padding on the left: where its label is not hidden, the last pad predicts the first word.
        for pads in (0, 1):
            layouts = left_layouts((start + pads,), learned=True)
            match = ended(prover, layouts, [line[pads:]])[1]
            if match.proof.holds:
                break
        return match
    return prover.match([line])


def _label(observation: Observation, network: nn.Module) -> int:
    """The class of a single example: granted, else inferred from the head; -1 if unknown."""
    if granted := observation.knowledge.labels:
        return granted[0]
    head = find_head(network)
    try:
        return infer_label(observation.update((head.weight, head.bias)), head)
    except CannotAttack:
        return -1


def sentence(words: Tensor, positions: Tensor) -> tuple[list[int], float]:
    """The row number in ``words`` at each position of a single example, and the miss.

    Solves ``words = X^T positions`` for one-hot ``X`` by least squares. The miss is the largest
    residual norm of a word row, divided by the smallest singular value of ``positions``; infinite
    if that is 0, as where two positions have the same signs or there are more positions than
    dimensions: then several sentences fit alike. A row whose position noise or pruning has hidden
    comes last.

    Args:
        words: rows of the tokens found, float64 ``(token, width)``.
        positions: rows of the positions in use, in order, float64 ``(position, width)``.
    """
    scores = (words @ torch.linalg.pinv(positions)).cpu()
    best, choice = scores.max(0)
    # Each token found takes one position; the remaining positions repeat their best token.
    rows, places = map(torch.from_numpy, linear_sum_assignment(scores.cpu().numpy(), maximize=True))
    fits = scores[rows, places] > best[places] / 2
    choice[places[fits]] = rows[fits]
    order: list[int] = choice.tolist()
    order += sorted(set(range(len(words))) - set(order))
    if not 0 < len(positions) <= positions.shape[1]:
        return order, float("inf")
    residual = words - one_hot(choice, len(words)).T.to(words) @ positions
    values = torch.linalg.svdvals(positions)
    rounding = torch.finfo(positions.dtype).eps * max(positions.shape) * float(values[0])
    if (smallest := float(values[-1])) <= rounding:
        return order, float("inf")
    return order, float(residual.norm(dim=1).max()) / smallest


def arrangement(
    words: Tensor, positions: Tensor, count: int | None, lengths: Sequence[int] | None
) -> list[list[int]]:
    """The row numbers in ``words`` of each sentence, by position.

    For tokens that occur once in the batch, ``positions pinv(words)`` is 1 at their positions.

    Args:
        words: rows of the tokens found, float64 ``(token, width)``.
        positions: rows of the positions in use, in order; may be empty.
        count: number of sentences, if known.
        lengths: number of tokens of each sentence, if known.
    """
    scores = (positions @ torch.linalg.pinv(words)).cpu()
    depth = depths(scores, count, lengths)
    most = count or max([1, *depth.tolist()])
    while len(depth) and int(depth.sum()) < len(words) and int(depth.min()) < most:
        depth = (depth + 1).clamp(max=most)
    slots = scores[torch.repeat_interleave(torch.arange(len(depth)), depth)]
    choice = slots.argmax(1)
    taken, rows = map(torch.from_numpy, linear_sum_assignment(slots.numpy(), maximize=True))
    choice[taken] = rows
    lines: list[list[int]] = [[] for _ in range(most)]
    owners = [line for deep in depth.tolist() for line in range(deep)]
    for line, row in zip(owners, choice.tolist(), strict=True):
        lines[line].append(row)
    for index, row in enumerate(sorted(set(range(len(words))) - set(choice.tolist()))):
        lines[index % most].append(row)
    return [line or list(range(len(words))) for line in lines]


def depths(scores: Tensor, count: int | None, lengths: Sequence[int] | None) -> Tensor:
    """Number of sentences that reach each position, int64 ``(position,)``, never increasing.

    If the lengths are unknown, it is the number of tokens with more than half the largest weight at
    the first position. Sentences often share their first token, whose two rows are then equal.
    """
    if lengths is not None:
        return (torch.tensor(lengths) > torch.arange(len(scores))[:, None]).sum(1)
    if not len(scores):
        return torch.zeros(0, dtype=torch.int64)
    counts = (scores > scores[0].max() / 2).sum(1).clamp(min=1, max=count)
    counts[0] = count or int(counts.max())
    return counts.flip(0).cummax(0).values.flip(0)
