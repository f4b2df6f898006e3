"""Labels of a text batch that are known, or searched for together with the text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from attacks.replay import observed_gradient
from fedsim.capture import Observation
from fedsim.errors import CannotAttack
from fedsim.tasks.language_modelling import IGNORED

_NEVER = -1e9


class LabelSearch(ABC):
    """What stands for the labels of a lane in the search."""

    @abstractmethod
    def start(self, known: tuple[int, ...] | None, free: Tensor, rng: torch.Generator) -> Tensor:
        """The values of one lane; ``free (sentence, token)`` are the places of words."""

    @abstractmethod
    def labels(self, values: Tensor, victims: slice) -> Tensor:
        """What the loss takes, from ``values (victim, candidate, ...)``."""

    @abstractmethod
    def settled(self, values: Tensor, victim: int) -> Tensor:
        """The labels of one lane's batch."""


@dataclass(frozen=True)
class Classes(LabelSearch):
    """Known classes ``(sentence,)``, or as in DLG logits ``(sentence, class)`` from N(0, 1)."""

    count: int

    def start(self, known: tuple[int, ...] | None, free: Tensor, rng: torch.Generator) -> Tensor:
        """The known classes, else logits."""
        if known is not None:
            return torch.tensor(known)
        return torch.randn(len(free), self.count, generator=rng)

    def labels(self, values: Tensor, victims: slice) -> Tensor:
        """Classes, or their distribution."""
        del victims
        return values.softmax(-1) if values.is_floating_point() else values

    def settled(self, values: Tensor, victim: int) -> Tensor:
        """Classes."""
        del victim
        return values.argmax(-1) if values.is_floating_point() else values


class Targets(LabelSearch):
    """The places of a masked language model's targets, whose tokens the update gives away.

    The gradient of the head's bias is ``mean softmax - share of the targets``: negative at the
    tokens asked for, by about how often. Their places are searched for as logits ``(target,
    sentence, token)``, with a softmax over all places. DLG (2019) instead searches at each place
    for a distribution over the vocabulary.
    """

    def __init__(self, observations: Sequence[Observation], network: nn.Module) -> None:
        """One observation a victim."""
        found = [_targets(observation, network) for observation in observations]
        device = next(network.parameters()).device
        self._tokens, self._counts = (
            pad_sequence(list(parts), batch_first=True).to(device)
            for parts in zip(*found, strict=True)
        )
        self._vocabulary = len(cast(Any, network).get_output_embeddings().weight)

    def start(self, known: tuple[int, ...] | None, free: Tensor, rng: torch.Generator) -> Tensor:
        """Logits from N(0, 1) at the places of words."""
        del known
        drawn = torch.randn(self._tokens.shape[1], *free.shape, generator=rng)
        return drawn.masked_fill(~free.cpu(), _NEVER)

    def labels(self, values: Tensor, victims: slice) -> Tensor:
        """The share of the targets at each place, ``(..., sentence, token, id)``; 1 in all."""
        places = values.flatten(3).softmax(-1).view_as(values)
        # Of one sum, as victims that share a pass share the mean over its targets.
        counts = self._counts[victims].to(values)
        shares = counts / counts.sum(1, keepdim=True)
        asked = (places * shares[:, None, :, None, None]).movedim(2, -1)
        tokens = self._tokens[victims][:, None, None, None].expand_as(asked)
        return asked.new_zeros(*asked.shape[:-1], self._vocabulary).scatter_add(-1, tokens, asked)

    def settled(self, values: Tensor, victim: int) -> Tensor:
        """Targets ``(sentence, token)``, -100 elsewhere."""
        targets = torch.full(values.shape[1:], IGNORED, device=values.device)
        pairs = zip(self._tokens[victim], self._counts[victim], values, strict=True)
        for token, count, logits in pairs:
            for place in logits.flatten().topk(int(count)).indices:
                targets.view(-1)[place] = token
        return targets


def _targets(observation: Observation, network: nn.Module) -> tuple[Tensor, Tensor]:
    """Distinct targets and how often each was asked for."""
    bias = cast(Any, network).get_output_embeddings().bias
    name = next((name for name, own in network.named_parameters() if own is bias), None)
    if name is None or name not in observation.received:
        raise CannotAttack(
            f"{observation.key}: a masked language model's targets are read off the bias of its "
            "head, which was not sent. Freeze less, or choose 'embedding_rows'."
        )
    own = replace(observation, received={name: observation.received[name]})
    gradient = observed_gradient(own)[name]
    tokens = torch.nonzero(gradient < 0)[:, 0]
    total = 1 / gradient[tokens].abs().min()  # the rarest target was asked for once
    return tokens, (-gradient[tokens] * total).round().clamp(min=1)
