"""GHOST: tokens are replaced by others, near in the embedding table and far in meaning."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, TypeAlias

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.defenses.base import Defense, DefenseFamily, Distortion
from fedsim.errors import ConfigError
from fedsim.types import Batch

Transformer: TypeAlias = Any
"""A causal language model of transformers, which has no types."""
_WIDER = 10
"""Neighbours that are added at a time where none of fewer may stand for a token, as published."""
_WIDENINGS = 10
_ROWS = 256
"""Tokens whose neighbours are compared at once."""
_BEAM = 64
"""Texts that are kept at each token."""


@dataclass(frozen=True, kw_only=True)
class Ghost(Defense):
    """Trains a language model on shadows of a text's tokens (Feng et al. 2026, "GHOST").

    Of the ``neighbours`` nearest tokens of t by the cosine of their rows in the word table, those c
    may stand for t of which neither t is a neighbour, nor more than a share ``overlap`` of the
    neighbours; where there is none, ten neighbours more are looked at, up to a hundred. From a
    random choice, the tokens of a text are replaced in turn, each by the one which brings the
    hidden states of all layers nearest to those of the original text, in mean squares summed over
    layers, until a sweep gains no more than ``gain``. Targets are replaced as well.

    This follows the authors' code (2602.15897), which also asks for another lemma, by spaCy: here
    it does not. They replace a data set once, by the pretrained model; here the broadcast model
    replaces each batch. Start, end and padding stay.

    To a server the shadows are a text like any other. An adaptive attacker reads them, and knows
    the table, hence which tokens each may stand for.

    Attributes:
        neighbours: nearest tokens that are looked at.
        overlap: largest share of neighbours that a token may have in common with its shadow.
        sweeps: most sweeps over a text.
        gain: least gain of a sweep after which there is another.
    """

    title: ClassVar[str] = "GHOST"
    family: ClassVar[DefenseFamily] = "published"
    run_by: ClassVar[str] = "the client; the authors' code has it"
    known: ClassVar[str] = "The word table: which tokens a shadow may stand for."
    claim: ClassVar[str] = 'recovers "as low as 1%", also adaptively'
    loses: ClassVar[frozenset[Distortion]] = frozenset({"inputs"})

    neighbours: Annotated[int, Field(ge=1)] = 70
    overlap: Annotated[float, Field(ge=0, le=1)] = 0.1
    sweeps: Annotated[int, Field(ge=1)] = 20
    gain: Annotated[float, Field(ge=0)] = 0.1

    def on_batch(self, batch: Batch, model: nn.Module, rng: torch.Generator) -> Batch:
        """The batch of shadows.

        Raises:
            ConfigError: it is not one of a language model.
        """
        if (
            batch.mask is None
            or not hasattr(model, "get_output_embeddings")
            or batch.labels.dim() != 2
        ):
            raise ConfigError("ghost: it replaces texts that a language model learns. Choose one.")
        training = model.training
        model.eval()
        inputs = batch.inputs.clone()
        table = _directions(model)
        for row, length in zip(inputs, batch.mask.sum(1).tolist(), strict=True):
            row[:length] = self._shadows(row[:length], table, model, rng)
        model.train(training)
        return replace(batch, inputs=inputs, labels=inputs.where(batch.labels >= 0, batch.labels))

    @torch.no_grad()
    def _shadows(
        self, text: Tensor, table: Tensor, model: Transformer, rng: torch.Generator
    ) -> Tensor:
        places = [i for i, token in enumerate(text.tolist()) if token not in edges(model)]
        tokens, which = text[places].unique(return_inverse=True)
        choices = [*self.choices(table, tokens)]
        options = {place: choices[i] for place, i in zip(places, which.tolist(), strict=True)}
        chosen = text.clone()
        for place, few in options.items():
            drawn = torch.randint(2**31, (1,), generator=rng, device=rng.device)
            chosen[place] = few[int(drawn) % len(few)]
        goal = _states(model, text[None])
        best = float(_distances(model, chosen[None], goal))
        for _ in range(self.sweeps):
            before = best
            for place, few in options.items():
                tried = chosen.repeat(len(few), 1)
                tried[:, place] = few
                distances = _distances(model, tried, goal)
                if float(distances.min()) < best:
                    best, chosen = float(distances.min()), tried[int(distances.argmin())]
            if before - best <= self.gain:
                break
        return chosen

    @torch.no_grad()
    def recover(self, batch: Batch, model: nn.Module) -> Batch:
        """The likeliest texts of these shadows, for a client that draws a token's shadow at random.

        A beam search through the tokens that each shadow may stand for, by what ``model`` says of
        the next token.
        """
        assert batch.mask is not None
        origins = self._origins(batch.inputs.unique().tolist(), _directions(model))
        inputs = batch.inputs.clone()
        for row, length in zip(inputs, batch.mask.sum(1).tolist(), strict=True):
            row[:length] = _likeliest(row[:length], origins, model)
        return replace(batch, inputs=inputs, labels=inputs.where(batch.labels >= 0, batch.labels))

    def _origins(self, shadows: list[int], table: Tensor) -> dict[int, list[tuple[int, float]]]:
        """The tokens that each may stand for, with the logarithms of their chances of it."""
        origins: dict[int, list[tuple[int, float]]] = {token: [] for token in shadows}
        near = _nearest(table, torch.arange(len(table), device=table.device), self._most(table))
        tokens = torch.isin(near, torch.tensor(shadows, device=table.device)).any(1).nonzero()[:, 0]
        for token, choices in zip(tokens.tolist(), self.choices(table, tokens), strict=True):
            for shadow in origins.keys() & set(choices.tolist()):
                origins[shadow].append((token, -math.log(len(choices))))
        return origins

    def choices(self, table: Tensor, tokens: Tensor) -> Iterator[Tensor]:
        """The tokens that may stand for each of these, the nearest first.

        Args:
            table: rows of the word table, of length 1.
            tokens: int64 ``(token,)``.
        """
        most = self._most(table)
        near = _nearest(table, tokens, most)
        rows, where = near.unique(return_inverse=True)
        around = _nearest(table, rows, most)
        for token, neighbours, place in zip(tokens, near, where, strict=True):
            yield self._fitting(token, neighbours, around[place])

    def _most(self, table: Tensor) -> int:
        return min(self.neighbours + _WIDER * _WIDENINGS, len(table) - 1)

    def _fitting(self, token: Tensor, near: Tensor, around: Tensor) -> Tensor:
        """Of the neighbours ``near (n,)``, whose own are ``around (n, n)``, those that may."""
        for count in range(min(self.neighbours, len(near)), len(near) + 1, _WIDER):
            nearest, theirs = near[:count], around[:count, :count]
            shared = torch.isin(theirs, nearest).sum(1)
            fits = (shared <= self.overlap * count) & (theirs != token).all(1)
            if fits.any():
                return nearest[fits]
        return near[: self.neighbours]


def _likeliest(
    shadows: Tensor, origins: dict[int, list[tuple[int, float]]], model: Transformer
) -> Tensor:
    """``(token,)``: the text before it was replaced."""
    texts, scores = shadows[None, :1], torch.zeros(1, device=shadows.device)
    for shadow in shadows[1:].tolist():
        known = [] if shadow in edges(model) else origins[shadow]
        tokens, chances = zip(*known or [(shadow, 0.0)], strict=True)
        few = torch.tensor(tokens, device=shadows.device)
        states = model.base_model(input_ids=texts, use_cache=False).last_hidden_state[:, -1]
        following = model.get_output_embeddings()(states).log_softmax(1)[:, few]
        total = scores[:, None] + following + torch.tensor(chances, device=shadows.device)
        scores, best = total.flatten().topk(min(_BEAM, total.numel()))
        texts = torch.cat([texts[best // len(few)], few[best % len(few)][:, None]], 1)
    return texts[0]


def edges(model: Transformer) -> set[int]:
    """Ids of the start, the end and the padding."""
    config = model.config
    ids = (config.bos_token_id, config.eos_token_id, config.pad_token_id)
    return {token for token in ids if isinstance(token, int)}


def _directions(model: Transformer) -> Tensor:
    return F.normalize(model.get_input_embeddings().weight.detach(), dim=1)


def _nearest(table: Tensor, tokens: Tensor, count: int) -> Tensor:
    """``(token, count)``: the nearest others by cosine."""
    parts = []
    for some in tokens.split(_ROWS):
        cosines = table[some] @ table.T
        cosines[range(len(some)), some] = -torch.inf
        parts.append(cosines.topk(count).indices)
    return torch.cat(parts)


def _states(model: Transformer, texts: Tensor) -> tuple[Tensor, ...]:
    body = model.base_model(input_ids=texts, output_hidden_states=True, use_cache=False)
    states: tuple[Tensor, ...] = body.hidden_states
    return states


def _distances(model: Transformer, texts: Tensor, goal: tuple[Tensor, ...]) -> Tensor:
    """``(text,)``: mean squares of the differences from the goal's states, summed over layers."""
    pairs = zip(_states(model, texts), goal, strict=True)
    return torch.stack([(states - other).square().mean((1, 2)) for states, other in pairs]).sum(0)
