"""Labels of a text batch, known or searched for together with the text."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from attacks.observed.replay import observed_gradient
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.tasks.language_modelling import IGNORED

_NEVER = -1e9
"""Logit of every label at a place that holds no word."""
SHARPNESS = 20.0
"""Inverse temperature of a target that follows from the guess, on cosines to the word table."""


class LabelSearch:
    """Representation of a candidate's labels during the search; of known classes, themselves."""

    def start(self, known: tuple[int, ...] | None, free: Tensor, rng: torch.Generator) -> Tensor:
        """Starting values of one candidate; ``free (sentence, token)`` marks the words' places."""
        del free, rng
        return torch.tensor(known)

    def labels(self, values: Tensor, victims: slice, guess: Tensor, mask: Tensor) -> Tensor:
        """Labels for the loss from ``values (victim, candidate, ...)``, embeddings and mask.

        The latter may leave out padding at the end, of which values have places.
        """
        del victims, guess, mask
        return values

    def settled(self, values: Tensor, victim: int, ids: Tensor, mask: Tensor) -> Tensor:
        """Final labels of one candidate with tokens ``ids (sentence, token)``."""
        del victim, ids, mask
        return values


class Targets(LabelSearch):
    """Places of a masked language model's targets, whose tokens the update reveals.

    The gradient of the head's bias is ``mean softmax - share of the targets``: negative at the
    target tokens, roughly in proportion to their counts. Their places are searched for as logits
    ``(target, sentence, token)``, with a softmax over all places. DLG (2019) instead searches at
    each place for a distribution over the vocabulary.
    """

    def __init__(self, observations: Sequence[Observation], network: nn.Module) -> None:
        """One observation a victim."""
        by_victim = [_targets(observation, network) for observation in observations]
        device = next(network.parameters()).device
        self._tokens, self._counts = (
            pad_sequence(list(parts), batch_first=True).to(device)
            for parts in zip(*by_victim, strict=True)
        )
        self._vocabulary = len(cast(Any, network).get_output_embeddings().weight)

    def start(self, known: tuple[int, ...] | None, free: Tensor, rng: torch.Generator) -> Tensor:
        """Logits from N(0, 1) at the places of words."""
        del known
        drawn = torch.randn(self._tokens.shape[1], *free.shape, generator=rng)
        return drawn.masked_fill(~free.cpu(), _NEVER)

    def labels(self, values: Tensor, victims: slice, guess: Tensor, mask: Tensor) -> Tensor:
        """The share of the targets at each place, ``(..., sentence, token, id)``; 1 in all."""
        del mask
        places = values.flatten(3).softmax(-1).view_as(values)
        # Of one sum, as victims that share a pass share the mean over its targets.
        counts = self._counts[victims].to(values)
        shares = counts / counts.sum(1, keepdim=True)
        asked = (places * shares[:, None, :, None, None]).movedim(2, -1)
        asked = asked[..., : guess.shape[-2], :]
        tokens = self._tokens[victims][:, None, None, None].expand_as(asked)
        return asked.new_zeros(*asked.shape[:-1], self._vocabulary).scatter_add(-1, tokens, asked)

    def settled(self, values: Tensor, victim: int, ids: Tensor, mask: Tensor) -> Tensor:
        """Targets ``(sentence, token)``, -100 elsewhere."""
        del ids, mask
        targets = torch.full(values.shape[1:], IGNORED, device=values.device)
        pairs = zip(self._tokens[victim], self._counts[victim], values, strict=True)
        for token, count, logits in pairs:
            for place in logits.flatten().topk(int(count)).indices:
                targets.view(-1)[place] = token
        return targets


class NextTokens(LabelSearch):
    """Targets of a causal language model: the words being searched for.

    The target at each place is a softmax over the vocabulary of the guess's cosines to the word
    table. DLG (2019) and TAG (2021) search at each place for a distribution of its own.
    """

    def __init__(self, network: nn.Module) -> None:
        words = cast(Any, network).get_input_embeddings().weight.detach()
        self._directions = normalize(words)

    def start(self, known: tuple[int, ...] | None, free: Tensor, rng: torch.Generator) -> Tensor:
        """Nothing."""
        del known, free, rng
        return torch.zeros(0, dtype=torch.int64)

    def labels(self, values: Tensor, victims: slice, guess: Tensor, mask: Tensor) -> Tensor:
        """The share of the targets at each place, ``(..., sentence, token, id)``; 1 in all."""
        del values, victims
        scores = SHARPNESS * normalize(guess, dim=-1) @ self._directions.T
        shares = scores.softmax(-1) * mask[..., None]
        # Nothing predicts the first token. Each lane's mean is over its own targets.
        return shares / mask[..., 1:].sum((-2, -1))[..., None, None, None]

    def settled(self, values: Tensor, victim: int, ids: Tensor, mask: Tensor) -> Tensor:
        """The tokens, -100 where there are none."""
        del values, victim
        return ids.masked_fill(mask == 0, IGNORED)


def _targets(observation: Observation, network: nn.Module) -> tuple[Tensor, Tensor]:
    """Distinct targets and the count of each."""
    bias = cast(Any, network).get_output_embeddings().bias
    name = next((name for name, parameter in network.named_parameters() if parameter is bias), None)
    if name is None or name not in observation.received:
        raise CannotAttack(
            "a masked language model's targets are read off the bias of its head, which was not "
            "sent",
            "Freeze less, or choose 'embedding_rows'.",
        )
    bias_only = replace(observation, received={name: observation.received[name]})
    gradient = observed_gradient(bias_only)[name]
    tokens = torch.nonzero(gradient < 0)[:, 0]
    total = 1 / gradient[tokens].abs().min()  # the rarest target was asked for once
    return tokens, (-gradient[tokens] * total).round().clamp(min=1)
