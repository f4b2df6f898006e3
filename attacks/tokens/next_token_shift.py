"""What a language model says of the next word, and how the client's update changes it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from attacks.observed.spectrum import SPIKE_FLOOR, spectrum
from fedsim.models.embeddings import embedding_names
from fedsim.models.layers import is_transposed
from fedsim.types import Tensors

_MODEL_WEIGHT = 0.5  # weight of a language model's log-probability
_SHIFT_WEIGHT = 3.0  # weight of the change that the update makes to it, a spread of the vocabulary
_START_TRUST = 0.2  # factor on that for the first word, where all sentences show in each other's
_FEED_FORWARD = 4.0  # least ratio of the sides of a feed-forward weight
_EVEN_RANKS = 0.33  # median over largest rank of such weights, below which all matrices are taken
_HEAD_SHIFT = 0.5  # the same for what the head's update says of the next word

_STEP = 0.01  # of the norm of the weights that move


class DirectionalShift:
    """The attacked language model a small step before and behind its weights.

    The loss of a causal model is a sum over positions, each term of which depends on the prefix and
    the next token alone. The derivative of ``-log p(v | prefix)`` along the update ``Y`` is
    ``<Y, grad l(prefix, v)>``, so two forward passes, at ``W - eps Y`` and ``W + eps Y``, give the
    inner product of the observed gradient with that of every next token of the vocabulary: a step
    along the update makes the private text likelier. In place of the update its pseudo-inverse is
    taken, so that the tokens of the batch do not speak for one another.

    The head's own update needs no pass: its inner product with the gradient of a next token is that
    of a row with the hidden state. It is told apart from the others, and so also of a tied head,
    whose table is moved at no input.
    """

    def __init__(
        self,
        network: nn.Module,
        moves: Tensors,
        shift: float = _SHIFT_WEIGHT,
        weight: float = _MODEL_WEIGHT,
        head: Tensor | None = None,
        step: float = _STEP,
    ) -> None:
        """Take the broadcast network, the inverse of the update and the weights of both parts.

        ``head`` is the inverse of the head's update, ``(vocabulary, width)``, if it is to tell, and
        ``step`` the length of the step, as a share of the norm of the weights that move.
        """
        parameters = dict(network.named_parameters())
        moves = {
            name: value.to(parameters[name]) for name, value in moves.items() if name in parameters
        }
        self._shift, self._weight, self._head = shift, weight, head
        self._step = 0.0
        total = sum(float(move.square().sum()) for move in moves.values()) ** 0.5
        size = sum(float(parameters[name].detach().square().sum()) for name in moves) ** 0.5
        self.shifts = total > 0
        if self.shifts:
            self._step = step * size / total
        self._networks: list[Any] = []
        for sign in (-1, 1) if self.shifts else (0,):
            moved = copy.deepcopy(network)
            with torch.no_grad():
                for name, value in moved.named_parameters():
                    if name in moves and sign:
                        value.add_(moves[name], alpha=sign * self._step)
            self._networks.append(moved)
        self._prefixes = torch.zeros(0, 0, dtype=torch.int64)
        self._caches: list[Any] = [None] * len(self._networks)

    @classmethod
    def of(cls, network: nn.Module, update: Tensors, most: int) -> DirectionalShift:
        """Take the broadcast network, the update and its largest rank."""
        tables = embedding_names(network)
        parameters = dict(network.named_parameters())
        known = {k: v for k, v in update.items() if k in parameters}
        for name in (tables.word, tables.position):
            known.pop(name or "", None)
        return cls(network, dict(_telling(known, most)))

    @torch.no_grad()
    def next_tokens(self, prefixes: Tensor) -> Tensor:
        """Log-probability plus weighted shift of each next token, ``(prefix, vocabulary)``.

        Prefixes that are one token longer than those of the call before take one token's time.
        """
        states = self._next_states(prefixes)
        trust = 1.0 if prefixes.shape[1] > 1 else _START_TRUST
        return self._scores(states, states[0].new_full((len(prefixes), 1), trust))

    @torch.no_grad()
    def next_logs(self, prefixes: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of each next token and what it loses along the moves, for a unit step.

        Both are ``(prefix, vocabulary)``. The second is the inner product of the moves with the
        gradient of the token's loss.
        """
        return self._difference(self._next_states(prefixes))

    @torch.no_grad()
    def logs(self, lines: Tensor) -> tuple[Tensor, Tensor]:
        """The same behind each token of lines, ``(line, token, vocabulary)``."""
        return self._difference(self._states(lines, torch.ones_like(lines)))

    def _states(self, lines: Tensor, mask: Tensor) -> list[Tensor]:
        return [
            network.base_model(input_ids=lines, attention_mask=mask).last_hidden_state
            for network in self._networks
        ]

    def _difference(self, states: list[Tensor]) -> tuple[Tensor, Tensor]:
        behind, ahead = self._logs(states)
        return (behind + ahead) / 2, (behind - ahead) / (2 * self._step)

    def _next_states(self, prefixes: Tensor) -> list[Tensor]:
        rows = self._parents(prefixes)
        mask, states = torch.ones_like(prefixes), []
        for index, network in enumerate(self._networks):
            cache = None
            if rows is not None:
                cache = self._caches[index]
                cache.reorder_cache(rows)
            out = network.base_model(
                input_ids=prefixes if rows is None else prefixes[:, -1:],
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
            )
            cache = out.past_key_values
            if isinstance(cache, tuple):  # of GPT-2 in transformers 4
                from transformers import DynamicCache

                cache = DynamicCache.from_legacy_cache(cache)
            self._caches[index] = cache
            states.append(out.last_hidden_state[:, -1])
        self._prefixes = prefixes
        return states

    def _parents(self, prefixes: Tensor) -> Tensor | None:
        """The row of each prefix but its last token in the call before; None if one is new.

        None as well for a network that keeps no cache.
        """
        if any(cache is None for cache in self._caches):
            return None
        places = {tuple(line): row for row, line in enumerate(self._prefixes.tolist())}
        rows = [places.get(tuple(line[:-1])) for line in prefixes.tolist()]
        return None if None in rows else torch.tensor(rows, device=prefixes.device)

    @torch.no_grad()
    def along(self, lines: Sequence[Tensor]) -> list[Tensor]:
        """The same for each place but the first of each line, ``(place, vocabulary)``."""
        ids = pad_sequence([*lines], batch_first=True)  # behind the tokens, which do not see it
        mask = pad_sequence([torch.ones_like(line) for line in lines], batch_first=True)
        states, scores = self._states(ids, mask), []
        for index, line in enumerate(lines):
            trust = states[0].new_ones(len(line) - 1, 1)
            trust[0] = _START_TRUST
            places = [state[index, : len(line) - 1] for state in states]
            scores.append(self._scores(places, trust))
        return scores

    def _logs(self, states: list[Tensor]) -> list[Tensor]:
        heads = [net.get_output_embeddings() for net in self._networks]
        return [head(state).log_softmax(-1) for head, state in zip(heads, states, strict=True)]

    def _scores(self, states: list[Tensor], trust: Tensor) -> Tensor:
        logs = self._logs(states)
        scores: Tensor = torch.stack(logs).mean(0)
        if self.shifts:
            scores = scores + trust * self._shift * _standing_out(logs[0] - logs[1])
        if self._head is not None:
            shift = -torch.stack(states).mean(0) @ self._head.T
            scores = scores + _HEAD_SHIFT * _standing_out(shift)
        return scores * self._weight


def _standing_out(shift: Tensor) -> Tensor:
    """By how many spreads of the vocabulary ``(place, vocabulary)`` each word leads its median."""
    shift = shift - shift.median(-1, keepdim=True).values
    spread = 1.4826 * shift.abs().median(-1, keepdim=True).values.clamp(min=1e-12)
    return (shift / spread).clamp(-3, 12)


def next_word_weights(network: nn.Module) -> set[str]:
    """The weights of the linear layers with more inputs than outputs, but not the head's."""
    narrowing = set()
    head = cast(Any, network).get_output_embeddings()
    for name, module in network.named_modules():
        if module is not head and (isinstance(module, nn.Linear) or is_transposed(module)):
            sides = cast(Tensor, module.weight).shape[:: 1 if is_transposed(module) else -1]
            if sides[0] > sides[1]:
                narrowing.add(f"{name}.weight")
    return narrowing


def head_weight(network: nn.Module) -> str | None:
    """The parameter of the head, which may be the table of words; None without a head."""
    head = cast(Any, network).get_output_embeddings()
    return next(
        (n for n, parameter in network.named_parameters() if head and parameter is head.weight),
        None,
    )


def _telling(update: Tensors, most: int) -> Iterator[tuple[str, Tensor]]:
    """The inverses of the feed-forward weights' updates, which hold more tokens apart than others.

    Those of all matrices in a network without feed-forward weights, or where most of these show far
    fewer directions than one of them, as under strong noise and pruning.
    """
    alive = {k: v for k, v in update.items() if v.dim() == 2 and v.any() and v.isfinite().all()}
    wide = [k for k, v in alive.items() if max(v.shape) >= _FEED_FORWARD * min(v.shape)]
    inverses = {name: _inverse(alive[name], most) for name in wide}
    ranks = sorted(rank for _, rank in inverses.values())
    if not ranks or ranks[len(ranks) // 2] < _EVEN_RANKS * ranks[-1]:
        inverses |= {k: _inverse(v, most) for k, v in alive.items() if k not in inverses}
    yield from ((name, move) for name, (move, _) in inverses.items())


def _inverse(value: Tensor, most: int) -> tuple[Tensor, int]:
    """The transposed pseudo-inverse of a weight's gradient, of its spikes at their true strength.

    Beside it the number of spikes.

    If ``G = X^T D`` holds independent tokens, ``x_s G^+ d_t`` is one for ``s = t`` and zero
    otherwise: the right next token behind a prefix is told from all others of the batch.
    """
    wide = value.double() if value.shape[0] <= value.shape[1] else value.double().T
    seen = spectrum(wide, most)
    if not seen.rank:
        return torch.zeros_like(value), 0
    right = seen.basis.T @ wide
    scale = right.norm(dim=1).clamp(min=SPIKE_FLOOR) * seen.strengths.sqrt()
    inverse: Tensor = (seen.basis * (seen.cosines / scale)) @ right
    return inverse if value.shape[0] <= value.shape[1] else inverse.T, seen.rank
