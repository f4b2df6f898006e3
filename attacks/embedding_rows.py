"""Read the words of a text off the embedding gradient: which rows moved, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot
from torch.nn.utils.rnn import pad_sequence

from attacks.base import Attack, Job, Reconstruction
from attacks.labels import find_head, infer_label
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.models.embeddings import embedding_names
from fedsim.records import Certificate
from fedsim.tasks.base import Task, TaskSpec
from fedsim.types import Batch, Tensors

_QUIET = 0.6  # share of a tied table's rows, lowest norm first, taken for words not in the batch
_RANK = 1e-6  # singular values below this share of the largest are float32 rounding
_OUTSIDE = 1e-5  # share of a tied row outside the head's span that is more than rounding
_ROUNDING = 1e-6  # change of a float32 weight row, as a share of its norm, that is rounding
_CERTAIN = 0.01  # largest miss of a certified sentence, as a share of the smallest singular value


@dataclass(frozen=True)
class EmbeddingRows(Attack):
    """The set of tokens from the word rows (FILM, 2022), their order from the position rows.

    With ``delta_p`` the loss gradient at input position ``p``, row ``p`` of the position table
    gets the sum of ``delta_p`` over the batch, and row ``v`` of the word table the sum over the
    places where token ``v`` stands. One example thus gives ``G_word = X^T G_position`` with
    one-hot ``X`` (position, token): least squares yields the sentence in order, repeated tokens
    included. FILM has no such step; it searches with a language model.

    Needs trainable word embeddings, and position embeddings for the order; no labels, lengths or
    eval mode. SGD and momentum clients are as good as gradients. One Adam step sends signs, which
    mostly still order a sentence; more steps leave the set alone. Weight decay moves each row
    along itself; it is measured on the median row and taken out, but decay inside Adam's gradient
    defeats the set. A tied head (GPT-2) fills every row: its rows span the final hidden states, so
    both tables are projected off that span, which takes an update without noise, signs or pruning
    and fewer predicted tokens than the width (half of it for the order). A causal model's last
    token has no gradient. Padding is masked and has none either.

    Confidence is ``certified`` where one sentence explains both tables: no word row is missed by
    more than 1 % of the smallest singular value of ``G_position``. Two arrangements differ by at
    least that value in some row, so no other one fits. (Copies of one sentence look like one.)
    It is ``guess`` for several examples: every token found is in the guess and no other, positions
    follow ``G_position pinv(G_word)``, but which tokens share a sentence is not known. The
    objective is that miss over that singular value, for one example.

    Attributes:
        threshold: under noise a row of width ``d`` with energy ``e``, in units of the noise
            variance (estimated on the median row), counts where ``(e - d) / sqrt(2 d)`` is
            larger. At 4 about 3 of BERT's 30522 rows count by chance, at 5 about 0.1.
    """

    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})
    threshold: float = 5.0

    def reconstruct(
        self,
        observations: Sequence[Observation],
        task: Task,
        rngs: Sequence[torch.Generator],
        job: Job,
        prepared: Tensors | None = None,
    ) -> list[Reconstruction]:
        """One guess for each observation; nothing is drawn."""
        del rngs, prepared
        network = task.build()
        return [self._read(observation, task.spec, network, job) for observation in observations]

    def _read(
        self, observation: Observation, spec: TaskSpec, network: nn.Module, job: Job
    ) -> Reconstruction:
        words, positions = tables(observation, network, job.device)
        noise = noise_variance(words)
        tokens = standing_out(words, noise, self.threshold)
        places = standing_out(positions, noise, self.threshold)
        if not len(tokens):
            raise CannotAttack(
                "embedding_rows: no row of the word embeddings stands out of the noise. "
                "Choose an attack that reads other layers."
            )
        words, positions = words[tokens], positions[places]
        count, lengths = observation.knowledge.num_examples, observation.knowledge.lengths
        order, miss = sentence(words, positions) if count in {None, 1} else ([], float("inf"))
        if count == 1 or miss <= _CERTAIN:
            lines = [order]
        else:
            # A causal model's last token predicts nothing, so its row holds no trace of it.
            unseen = 1 if spec.kind == "language-modelling" else 0
            seen = None if lengths is None else [length - unseen for length in lengths]
            lines = arrangement(words, positions, count, seen)
        confidence: Certificate = "certified" if miss <= _CERTAIN else "guess"
        labels = torch.full((len(lines),), -1)
        if len(lines) == 1 and spec.num_classes:
            labels[0] = label(observation, network)
        ids = [tokens.cpu()[line] for line in lines]
        return Reconstruction(
            Batch(
                pad_sequence(ids, batch_first=True, padding_value=spec.pad_id or 0),
                labels,
                pad_sequence([torch.ones_like(line) for line in ids], batch_first=True),
            ),
            objective=miss if miss < float("inf") else None,
            confidence=(confidence,) * len(lines),
        )


def tables(
    observation: Observation, network: nn.Module, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Word ``(vocabulary, width)`` and position rows of the update, what is no input taken out.

    The positions are empty where the client does not send them.

    Raises:
        CannotAttack: the word embeddings were not sent, or their rows cannot be told apart.
    """
    names = embedding_names(network)
    if names.word is None or names.word not in observation.received:
        raise CannotAttack(
            f"embedding_rows: the client does not send the word embeddings (frozen), "
            f"{names.word!r} is not in the reply. Choose an attack that reads other layers."
        )
    update = {k: v.to(device) for k, v in part(observation, [names.word, names.position]).items()}
    if not all(value.isfinite().all() for value in update.values()):
        raise CannotAttack(
            f"embedding_rows: {names.word!r} or its positions hold NaN or infinite values. "
            "Lower the client's learning rate."
        )
    words = update[names.word]
    output = getattr(network, "get_output_embeddings", lambda: None)()
    tied = output is not None and output.weight is network.get_parameter(names.word)
    if not tied and observation.kind == "weights":
        update = without_decay(update, names.word, observation.sent)
        words = update[names.word]
    positions = update.get(names.position or "", words[:0])
    return without_head(words, positions) if tied else (words, positions)


def part(observation: Observation, names: Iterable[str | None]) -> Tensors:
    """The update of these parameters alone, in float64."""
    received = {name: observation.received[name] for name in names if name in observation.received}
    return replace(observation, received=received).update()


def without_decay(update: Tensors, word: str, sent: Tensors) -> Tensors:
    """Subtract what weight decay did, a multiple of each weight, as seen on the median word row."""
    before = sent[word].to(update[word])
    share = ((update[word] * before).sum(1) / before.square().sum(1).clamp_min(1e-30)).median()
    if share == 0:
        return update
    rest = {}
    for name, value in update.items():
        before = sent[name].to(value)
        moved = value - share * before
        rounding = _ROUNDING * before.norm(dim=1, keepdim=True)
        rest[name] = moved.where(moved.norm(dim=1, keepdim=True) > rounding, 0)
    return rest


def without_head(words: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Project both tables off the span of the tied head's rows, which rows of absent words show.

    Head row ``v`` is a mix of the final hidden states of all predicted places. The rows of lowest
    norm belong to words that are not in the batch, and span the same space.

    Raises:
        CannotAttack: the span is the whole width.
    """
    quiet = words[words.norm(dim=1).argsort()[: int(_QUIET * len(words))]]
    quiet = normalize(quiet, dim=1, eps=1e-30)
    energy, directions = torch.linalg.eigh(quiet.T @ quiet)
    span = directions[:, energy > _RANK**2 * energy[-1]]
    rank, width = span.shape[1], len(energy)
    if rank >= width:
        raise CannotAttack(
            f"embedding_rows: the rows of the tied head fill all {width} dimensions, so that no "
            "input row stands out. Noise, signs, pruning and weights do that, and so do "
            f"{width} predicted tokens; choose an attack that reads other layers."
        )
    rest = words - words @ span @ span.T
    outside = rest.norm(dim=1, keepdim=True) > _OUTSIDE * words.norm(dim=1, keepdim=True)
    return rest.where(outside, 0), positions - positions @ span @ span.T


def noise_variance(words: Tensor) -> float:
    """Variance of a coordinate of an absent word's row: 0 unless every row but one has moved."""
    energy = words.square().sum(1)
    quiet = int((energy == 0).sum())
    return 0.0 if quiet > 1 else float(energy.median()) / words.shape[1]


def standing_out(rows: Tensor, noise: float, threshold: float) -> Tensor:
    """Row numbers, ascending, whose energy is more than the noise explains; without, not zero."""
    energy, width = rows.square().sum(1), rows.shape[1]
    return (energy > noise * (width + threshold * (2 * width) ** 0.5)).nonzero()[:, 0]


def sentence(words: Tensor, positions: Tensor) -> tuple[list[int], float]:
    """For each position the row of ``words`` there, and the arrangement's miss.

    The miss is the largest residual norm of a word row over the smallest singular value of
    ``positions``, infinite where their rows depend on each other. A row that found no place (noise
    or pruning hid its position) comes last.
    """
    scores = words @ torch.linalg.pinv(positions)
    choice = scores.argmax(0)
    # Each token found stands somewhere; a position beyond that repeats its best token.
    rows, places = linear_sum_assignment(scores.cpu().numpy(), maximize=True)
    choice[torch.from_numpy(places)] = torch.from_numpy(rows).to(choice.device)
    shares = one_hot(choice, len(words)).to(words).T @ positions
    order: list[int] = choice.tolist()
    order += sorted(set(range(len(words))) - set(order))
    if not 0 < len(positions) <= positions.shape[1]:
        return order, float("inf")
    smallest = float(torch.linalg.svdvals(positions)[-1])
    return order, float((words - shares).norm(dim=1).max()) / max(smallest, 1e-300)


def arrangement(
    words: Tensor, positions: Tensor, count: int | None, lengths: Sequence[int] | None
) -> list[list[int]]:
    """Deal the rows of ``words`` out to sentences, each at the position its gradient points to.

    Args:
        words: rows of the tokens found.
        positions: rows of the positions in use, in order; may be empty.
        count: number of sentences, if known.
        lengths: tokens of each sentence that have a gradient, if known.
    """
    scores = positions @ torch.linalg.pinv(words)
    depth = depths(scores, count, lengths)
    most = count or max([1, *depth.tolist()])
    while len(depth) > 0 and int(depth.sum()) < len(words) and int(depth.min()) < most:
        depth = (depth + 1).clamp(max=most)
    slots = scores.cpu()[torch.repeat_interleave(torch.arange(len(depth)), depth)]
    choice = slots.argmax(1)
    rows, columns = linear_sum_assignment(slots.numpy(), maximize=True)
    choice[torch.from_numpy(rows)] = torch.from_numpy(columns)
    lines: list[list[int]] = [[] for _ in range(most)]
    places = [line for deep in depth.tolist() for line in range(deep)]
    for line, row in zip(places, choice.tolist(), strict=True):
        lines[line].append(row)
    for index, row in enumerate(sorted(set(range(len(words))) - set(choice.tolist()))):
        lines[index % most].append(row)
    return [line or list(range(len(words))) for line in lines]


def depths(scores: Tensor, count: int | None, lengths: Sequence[int] | None) -> Tensor:
    """How many sentences reach each position, int64 ``(position,)``, never increasing.

    Unless the lengths are known, the number of tokens with more than half the weight of the first
    position's best: sentences often share their first token, whose two rows are then equal.
    """
    if lengths is not None:
        return (torch.tensor(lengths) > torch.arange(len(scores))[:, None]).sum(1)
    if not len(scores):
        return torch.zeros(0, dtype=torch.int64)
    found = (scores > scores[0].max() / 2).sum(1).cpu().clamp(min=1, max=count)
    found[0] = count or int(found.max())
    return found.flip(0).cummax(0).values.flip(0)


def label(observation: Observation, network: nn.Module) -> int:
    """The class of a single example: granted, else read off the head; -1 where it does not tell."""
    if granted := observation.knowledge.labels:
        return granted[0]
    head = find_head(network)
    try:
        return infer_label(part(observation, [head.weight, head.bias]), head)
    except CannotAttack:
        return -1
