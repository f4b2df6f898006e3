"""Read the words of a text off the embedding gradient: which rows moved, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from attacks.base import Attack, Job, Reconstruction
from attacks.labels import find_head, infer_label
from attacks.words.incidence import arrangement, sentence
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.models.embeddings import embedding_names
from fedsim.records import Certificate
from fedsim.tasks.base import Task, TaskSpec
from fedsim.types import Batch, Tensors

_QUIET = 0.6  # share of a tied table's rows, lowest norm first, taken for words not in the batch
_RANK = 1e-7  # singular values below this share of the largest are float32 rounding
_OUTSIDE = 1e-5  # share of a tied row outside the head's span that is more than rounding
_ROUNDING = 1e-6  # change of a float32 weight row, as a share of its norm, that is rounding
_WHOLE = 0.99  # share of coordinates that are not 0 in rows that were not pruned
_CERTAIN = 0.01  # largest miss of a certified sentence, in smallest singular values


@dataclass(frozen=True)
class EmbeddingRows(Attack):
    """The set of tokens from the word rows (FILM, 2022), their order from the position rows.

    With ``delta_p`` the loss gradient at input position ``p``, row ``p`` of the position table
    gets the sum of ``delta_p`` over the batch, and row ``v`` of the word table the sum over the
    places where token ``v`` stands. One example thus gives ``G_word = X^T G_position`` with
    one-hot ``X`` (position, token): least squares yields the sentence in order, repeated tokens
    included. FILM has no such step; it searches with a language model.

    Needs trainable word embeddings, and position embeddings for the order; no labels, lengths or
    eval mode. SGD and momentum clients are as good as gradients. Adam and AdamW clients send about
    the signs, enough for the set and mostly for the order. Weight decay moves each row along
    itself; it is measured on the median row and taken out, but decay inside Adam's gradient
    spoils the set. A tied head (GPT-2) fills every row: its rows span the final hidden states, so
    both tables are projected off that span, which takes a gradient without noise, signs or pruning
    (weights are too coarse) and fewer predicted tokens than the width, half of it for the order.
    A causal model's last token has no gradient. Padding is masked and has none either. Of a masked
    language model's text, what is certified is the text as the model saw it, masks and all.

    Confidence is ``certified`` where one sentence explains both tables: no word row is missed by
    more than 1 % of the smallest singular value of ``G_position``. Two arrangements differ by at
    least that value in some row, so no other one fits. (Copies of one sentence look like one.)
    Rows with zeros were pruned and are never certified, since whole tokens may be lost. It is
    ``guess`` for several examples: every token found is in the guess and no other, positions
    follow ``G_position pinv(G_word)``, but which tokens share a sentence is not known. The
    objective is the miss in smallest singular values, for one example.

    Attributes:
        threshold: under noise a row of width ``d`` with energy ``e``, in units of the noise
            variance (estimated on the median row), counts where ``(e - d) / sqrt(2 d)`` is
            larger. At 4 about 3 of BERT's 30522 rows count by chance, at 5 about 0.1.
    """

    modalities: ClassVar[frozenset[Literal["image", "text"]]] = frozenset({"text"})
    threshold: Annotated[float, Field(gt=0)] = 5.0

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
        count, lengths = observation.knowledge.num_examples, observation.knowledge.lengths
        words, positions = tables(observation, network, job.device)
        noise = noise_variance(words)
        tokens = standing_out(words, noise, self.threshold)
        most = len(words) if count is None else count * spec.input_shape[0]
        if not 0 < len(tokens) <= most:
            raise CannotAttack(
                f"embedding_rows: {len(tokens)} rows of the word embeddings stand out, and the "
                f"batch holds 1 to {most} tokens. Noise hides rows; weight decay inside Adam, or "
                "pruning a tied head, shows false ones. Choose an attack that reads other layers."
            )
        places = standing_out(positions, noise, self.threshold)
        words, positions = words[tokens], positions[places]
        order, miss = sentence(words, positions) if count in {None, 1} else ([], float("inf"))
        # Pruning may take a token with its position, and what is left explains itself. It leaves
        # a gap, or zeros in the other rows.
        whole = bool((positions != 0).double().mean() > _WHOLE) and bool((places.diff() == 1).all())
        certain = whole and miss <= _CERTAIN
        if count == 1 or certain:
            lines = [order]
        else:
            # A causal model's last token predicts nothing, so no row holds a trace of it.
            unseen = 1 if spec.kind == "language-modelling" else 0
            seen = None if lengths is None else [length - unseen for length in lengths]
            lines, miss = arrangement(words, positions, count, seen), float("inf")
        labels = torch.full((len(lines),), -1)
        if len(lines) == 1 and spec.num_classes:
            labels[0] = _label(observation, network)
        ids = [tokens.cpu()[line] for line in lines]
        confidence: Certificate = "certified" if certain else "guess"
        return Reconstruction(
            Batch(
                pad_sequence(ids, batch_first=True, padding_value=spec.pad_id or 0),
                labels,
                pad_sequence([torch.ones_like(line) for line in ids], batch_first=True),
            ),
            objective=miss if miss < float("inf") else None,
            confidence=(confidence,) * len(lines),
        )


def standing_out(rows: Tensor, noise: float, threshold: float = 5.0) -> Tensor:
    """Row numbers, ascending, with more energy than noise of this variance explains.

    Any energy will do where there is no noise; ``threshold`` is that of ``EmbeddingRows``.
    """
    energy, width = rows.square().sum(1), rows.shape[1]
    return torch.nonzero(energy > noise * (width + threshold * (2 * width) ** 0.5))[:, 0]


def tables(
    observation: Observation, network: nn.Module, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Word and position rows of the update in float64, without what inputs did not cause.

    The positions have no row where the client does not send them.

    Raises:
        CannotAttack: the word embeddings were not sent, or hold no readable rows.
    """
    names = embedding_names(network)
    if names.word is None or names.word not in observation.received:
        raise CannotAttack(
            "embedding_rows: the client does not send the word embeddings (frozen); the reply has "
            f"no {names.word!r}. Choose an attack that reads other layers."
        )
    update = {k: v.to(device) for k, v in observation.update((names.word, names.position)).items()}
    if broken := [name for name, value in update.items() if not value.isfinite().all()]:
        raise CannotAttack(
            f"embedding_rows: {broken[0]!r} holds NaN or infinite values. "
            "Lower the client's learning rate."
        )
    output = getattr(network, "get_output_embeddings", lambda: None)()
    tied = output is not None and output.weight is network.get_parameter(names.word)
    if observation.kind == "weights" and not tied:
        update = without_decay(update, names.word, observation.sent)
    words = update[names.word]
    positions = update.get(names.position or "", words[:0])
    count = observation.knowledge.num_examples
    return without_head(words, positions, count) if tied else (words, positions)


def without_decay(update: Tensors, word: str, sent: Tensors) -> Tensors:
    """Subtract what weight decay did, a multiple of each weight, as seen on the median word row."""
    before = sent[word].to(update[word])
    share = ((update[word] * before).sum(1) / before.square().sum(1).clamp(min=1e-30)).median()
    if share == 0:
        return update
    rest = {}
    for name, value in update.items():
        before = sent[name].to(value)
        moved = value - share * before
        rounding = _ROUNDING * before.norm(dim=1, keepdim=True)
        rest[name] = moved.where(moved.norm(dim=1, keepdim=True) > rounding, 0)
    return rest


def without_head(
    words: Tensor, positions: Tensor, count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Project both tables off the span of the tied head's rows, which absent words show.

    Head row ``v`` is a mix of the final hidden states, one for each predicted token. The rows of
    lowest norm belong to words that are not in the batch, and span the same space.

    Raises:
        CannotAttack: the span is the whole width, or larger than the predicted tokens'.
    """
    quiet = normalize(words[words.norm(dim=1).argsort()[: int(_QUIET * len(words))]], eps=1e-30)
    energy, directions = torch.linalg.eigh(quiet.T @ quiet)
    span = directions[:, energy > _RANK**2 * energy[-1]]
    rank, places = span.shape[1], int(positions.any(dim=1).sum())
    most = len(energy) - 1
    if count is not None and places:
        most = min(most, count * places)
    if rank > most:
        raise CannotAttack(
            f"embedding_rows: the rows of the tied head span {rank} dimensions, and inputs can be "
            f"told from it up to {most}. The batch has too many tokens, or noise, signs, pruning "
            "or weights instead of gradients fill the span; choose an attack on other layers."
        )
    rest = words - words @ span @ span.T
    outside = rest.norm(dim=1, keepdim=True) > _OUTSIDE * words.norm(dim=1, keepdim=True)
    return rest.where(outside, 0), positions - positions @ span @ span.T


def noise_variance(words: Tensor) -> float:
    """Variance of a coordinate of an absent word's row; 0 unless every row but one has moved."""
    energy = words.square().sum(1)
    still = int((energy == 0).sum())
    return 0.0 if still > 1 else float(energy.median()) / words.shape[1]


def _label(observation: Observation, network: nn.Module) -> int:
    """The class of a single example: granted, else read off the head; -1 where it does not tell."""
    if granted := observation.knowledge.labels:
        return granted[0]
    head = find_head(network)
    try:
        return infer_label(observation.update((head.weight, head.bias)), head)
    except CannotAttack:
        return -1
