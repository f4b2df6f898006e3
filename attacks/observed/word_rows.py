"""The rows of the embedding gradients: the tokens that moved, without the part of a tied head."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from attacks.observed.readings import FULL_SHARE
from fedsim.errors import CannotAttack
from fedsim.models.embeddings import Embeddings, embedding_names
from fedsim.store.capture import Observation
from fedsim.types import Tensors

_ABSENT_WORDS = 0.6
"""Share of a tied table's rows, lowest norm first, that are taken for words absent from the
batch."""
_HEAD_SINGULAR_VALUE = 1e-7
"""Smallest singular value that counts towards the span of a tied head, as a share of the largest;
below lies float32 rounding."""
_ROW_OUTSIDE_HEAD = 1e-5
"""Smallest part of a tied row outside the head's span that is more than rounding, as a share of the
row's norm."""
_MOVED_ROW = 1e-6
"""Smallest change of a float32 weight row that is more than rounding, as a share of the row's
norm."""


def standing_out(rows: Tensor, noise: float, threshold: float = 5.0) -> Tensor:
    """Row numbers, ascending, with more energy than noise of this variance explains.

    Any energy will do where there is no noise. ``threshold`` is in standard deviations of the
    energy of noise.
    """
    energy, width = rows.square().sum(1), rows.shape[1]
    return torch.nonzero(energy > noise * (width + threshold * (2 * width) ** 0.5))[:, 0]


@dataclass(frozen=True, slots=True)
class EmbeddingTables:
    """What the update holds for the two embedding tables, float64, without weight decay.

    Attributes:
        words: ``(word, width)``.
        positions: ``(position, width)``; no row where the client does not send them.
        tied: whether the word table is the head, which then fills every row of it.
        names: of the tables.
    """

    words: Tensor
    positions: Tensor
    tied: bool
    names: Embeddings

    def of_inputs(self, count: int | None) -> tuple[Tensor, Tensor]:
        """Word and position rows without what inputs did not cause, for ``count`` sentences.

        Raises:
            CannotAttack: a tied head's part cannot be told apart.
        """
        if not self.tied:
            return self.words, self.positions
        return without_head(self.words, self.positions, count)


def read_tables(
    observation: Observation, network: nn.Module, device: torch.device
) -> EmbeddingTables:
    """The rows as they came, but for weight decay.

    Raises:
        CannotAttack: the word embeddings were not sent, or are not finite.
    """
    names = embedding_names(network)
    if names.word is None or names.word not in observation.received:
        raise CannotAttack(
            "the client does not send the word embeddings (frozen); the reply has no "
            f"{names.word!r}",
            "Train them, or choose an attack or an option that does without their rows.",
        )
    update = {k: v.to(device) for k, v in observation.update((names.word, names.position)).items()}
    if broken := [name for name, value in update.items() if not value.isfinite().all()]:
        raise CannotAttack(
            f"{broken[0]!r} holds NaN or infinite values",
            "Lower the client's learning rate.",
        )
    tied = is_tied(network)
    if observation.kind != "gradient" and not tied:
        update = without_decay(update, names.word, observation.sent)
    words = update[names.word]
    return EmbeddingTables(words, update.get(names.position or "", words[:0]), tied, names)


def tables(
    observation: Observation, network: nn.Module, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Word and position rows in float64, without what inputs did not cause.

    Raises:
        CannotAttack: as ``read_tables``, or a tied head's part cannot be told apart.
    """
    rows = read_tables(observation, network, device)
    return rows.of_inputs(observation.knowledge.num_examples)


@dataclass(frozen=True, slots=True)
class MovedWords:
    """The words whose rows moved by more than noise and weight decay.

    Attributes:
        ids: ascending, special tokens among them.
        complete: whether no other word can have been used: all other rows are still, and the rows
            that moved have no zeros, which pruning leaves.
    """

    ids: tuple[int, ...]
    complete: bool


def moved_words(observation: Observation, network: nn.Module) -> MovedWords:
    """The set of words that an update shows, whatever their order and their sentences.

    Raises:
        CannotAttack: as ``tables``.
    """
    rows = tables(observation, network, torch.device("cpu"))[0]
    noise = noise_variance(rows)
    ids = standing_out(rows, noise)
    unpruned = bool((rows[ids] != 0).double().mean() > FULL_SHARE) if len(ids) else False
    coarse = any(
        value.is_floating_point() and value.itemsize < torch.float32.itemsize
        for value in observation.received.values()
    )
    return MovedWords(tuple(ids.tolist()), noise == 0 and unpruned and not coarse)


def is_tied(network: nn.Module) -> bool:
    """Whether the word table is the head, too."""
    head = getattr(network, "get_output_embeddings", lambda: None)()
    return head is not None and head.weight is network.get_input_embeddings().weight  # type: ignore[operator]


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
        rounding = _MOVED_ROW * before.norm(dim=1, keepdim=True)
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
    absent = quiet_directions(words)
    energy, directions = torch.linalg.eigh(absent.T @ absent)
    span = directions[:, energy > _HEAD_SINGULAR_VALUE**2 * energy[-1]]
    rank, places = span.shape[1], int(positions.any(dim=1).sum())
    most = len(energy) - 1
    if count is not None and places:
        most = min(most, count * places)
    if rank > most:
        raise CannotAttack(
            f"the rows of the tied head span {rank} dimensions, and words show in at most {most}",
            "The batch has too many tokens, or noise, signs, pruning or weights instead of "
            "gradients fill the span; choose an attack on other layers.",
        )
    rest = words - words @ span @ span.T
    rounding = _ROW_OUTSIDE_HEAD * words.norm(dim=1, keepdim=True)
    outside = rest.norm(dim=1, keepdim=True) > rounding
    return rest.where(outside, 0), positions - positions @ span @ span.T


def quiet_directions(words: Tensor) -> Tensor:
    """Unit rows of the words that are taken not to be in the batch: those of lowest norm."""
    directions = normalize(words, eps=1e-30)
    return directions[words.norm(dim=1).argsort()[: int(_ABSENT_WORDS * len(words))]]


def noise_variance(words: Tensor) -> float:
    """Variance of a coordinate of an absent word's row; 0 unless every row but one has moved."""
    energy = words.square().sum(1)
    still = int((energy == 0).sum())
    return 0.0 if still > 1 else float(energy.median()) / words.shape[1]
