"""The rank of each private token among the vocabulary, by its angle to the span of a gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.subspace import Subspace, span
from fedsim.errors import ConfigError
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors

MATRICES = ("W_Q", "W_V", "all")
_CHUNK = 8192
_ROUNDING = 4e-6  # of a squared sine that is computed from the cosine in float32


class Ranking:
    """Inputs of one model's first layer for every token, and the gradients that span them.

    The span is that of the strongest directions, as many as tokens leave a trace. An attacker who
    does not know their number can try them all.
    """

    def __init__(self, task: TextTask, sent: Tensors) -> None:
        """Find the first layer of the broadcast model.

        Raises:
            CannotAttack: the network has no attention over linear layers.
            ConfigError: that layer does not hold queries, keys and values of the same size.
        """
        network = task.model(sent)
        self.task = task
        self.size: int = network.get_input_embeddings().num_embeddings  # type: ignore[operator]
        self.layers = FirstLayers(network, range(self.size - 3, self.size), task.max_length)
        weights = {name: sent[name] for name in self.layers.tokens.weights(sent)}
        self.width, outputs = self.layers.tokens.side(weights).shape
        shapes = [tuple(value.shape) for value in weights.values()]
        if outputs % 3 or len(shapes) not in (1, 3) or len(set(shapes)) > 1:
            raise ConfigError(
                f"task.model: {task.spec.model!r} has matrices of the shapes {shapes} before its "
                "first attention, not queries, keys and values of one size. Choose a model of the "
                "BERT or GPT-2 type."
            )

    def gradients(self, seen: Observation) -> tuple[Tensor, Tensor, Tensor]:
        """The first layer's update ``(width, outputs)`` by ``MATRICES``."""
        names = self.layers.tokens.weights(seen.received)
        side = self.layers.tokens.side(seen.update(names))
        query, _, value = side.chunk(3, 1)
        return query, value, side

    def rms(self, seen: Observation) -> Tensor:
        """Root mean square of each of ``MATRICES``, float64 ``(matrix,)``."""
        return torch.stack([part.square().mean().sqrt() for part in self.gradients(seen)])

    def spans(self, seen: Observation, batch: Batch) -> list[Subspace]:
        """The span of each of ``MATRICES``; none if the matrix is zero or not finite."""
        assert batch.mask is not None
        tokens = int(batch.mask.sum())
        if self.task.spec.kind == "language-modelling":
            tokens -= len(batch)  # nothing is predicted from the last token
        spans = []
        for part in self.gradients(seen):
            found = span(part) if part.isfinite().all() else Subspace(part[:, :0], min(part.shape))
            spans.append(Subspace(found.basis[:, :tokens].clone(), found.most))  # drops the rest
        return spans

    def words(self, batch: Batch) -> Tensor:
        """The private tokens, bool ``(batch, token)``: neither padding nor start nor end."""
        assert batch.mask is not None
        special = torch.tensor(self.task.spec.special_ids, dtype=torch.int64)
        return batch.mask.bool() & ~torch.isin(batch.inputs, special)

    def ranks(
        self, spans: Sequence[Sequence[Subspace]], batches: Sequence[Batch]
    ) -> tuple[Tensor, list[int]]:
        """The ranks ``(word, matrix)`` of all words of all batches, and each word's batch.

        All batches are gone through position by position, so that the vocabulary's inputs are
        computed once for each.
        """
        found, owners = [], []
        for place in range(max(batch.inputs.shape[1] for batch in batches)):
            inputs = None
            for number, batch in enumerate(batches):
                if place >= batch.inputs.shape[1]:
                    continue
                assert batch.mask is not None
                private = batch.inputs[self.words(batch)[:, place], place].tolist()
                if not private:
                    continue
                if inputs is None:
                    inputs = self._inputs(place)
                standing = batch.inputs[batch.mask[:, place].bool(), place]
                found.append(ranks_at(inputs, spans[number], private, standing))
                owners += [number] * len(private)
        return torch.cat(found), owners

    def _inputs(self, place: int) -> Tensor:
        """Unit inputs ``(token, width)`` of the first layer for the vocabulary at one position."""
        parts = torch.arange(self.size).split(_CHUNK)
        return normalize(torch.cat([self.layers.of_tokens(ids, place) for ids in parts]), dim=1)


def ranks_at(
    inputs: Tensor, spans: Sequence[Subspace], true: Sequence[int], standing: Tensor
) -> Tensor:
    """One more than the false tokens that are nearer to each span, ``(true, span)``.

    Equally near ones count half, so that a span that says nothing gives the middle rank.

    Args:
        inputs: unit vectors ``(vocabulary, width)``, float32.
        spans: subspaces of the same width.
        true: token ids to rank.
        standing: all ids that are no false ones.
    """
    bases = [each.basis.to(inputs) for each in spans]
    inside = (inputs @ torch.cat(bases, 1)).square().split([b.shape[1] for b in bases], 1)
    false = torch.ones(len(inputs), dtype=torch.bool)
    false[standing] = False
    ranks = torch.empty(len(true), len(spans), dtype=torch.float64)
    for column, (subspace, part) in enumerate(zip(spans, inside, strict=True)):
        rough = 1 - part.sum(1)
        for row, token in enumerate(true):
            apart = rough - rough[token]
            nearer = ((apart < -_ROUNDING) & false).sum()
            own = subspace.distance(inputs[token])
            close = subspace.distance(inputs[(apart.abs() <= _ROUNDING) & false])
            ranks[row, column] = 1 + nearer + (close < own).sum() + 0.5 * (close == own).sum()
    return ranks
