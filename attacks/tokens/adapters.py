"""The span of a layer's inputs, computed from the gradients of its LoRA adapters."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.tokens.subspace import EQUAL_RANK, Subspace, rounding, span
from fedsim.models.adapters import is_adapter, is_second_factor, second_factor
from fedsim.store.capture import Observation

_ALONE = ", so that A x alone leaks, through dL/dB"
_FACTOR_SINGULAR_VALUE = 1e-6
"""The same for the second factor of an adapter."""


@dataclass(frozen=True)
class AdapterBlock:
    """A span of inputs ``x``, or of ``A x`` with the adapter's ``A (rank, width)``.

    Attributes:
        seen: the span; ``seen.most`` is the largest rank that the gradient could have.
        a: the adapter's ``A``; None for a span of ``x`` itself.
    """

    seen: Subspace
    a: Tensor | None = None

    @property
    def full(self) -> bool:
        """Whether the tokens may outnumber the dimensions."""
        return self.seen.rank >= self.seen.most

    def of(self, inputs: Tensor) -> Tensor:
        """Inputs ``(..., width)`` mapped to the space of the span."""
        return inputs if self.a is None else inputs @ self.a.to(inputs).T


@dataclass(frozen=True)
class AdapterSpan(Subspace):
    """Several spans, each of which contains the inputs of a layer with adapters.

    For ``y = W x + s B A x`` and ``g = dL/dy``, ``dL/dA = s B^T sum g x^T`` and
    ``dL/dB = s sum g (A x)^T``. The rows of ``dL/dA`` lie in the span of the inputs; those of all
    adapters of the layer together cover at most as many dimensions as the ranks of all ``B`` add
    up to (DAGER, Petrov et al. 2024, uses one adapter), and none in the first round, where ``B``
    is 0. The rows of ``dL/dB`` span the ``A x``; they are informative if the tokens are fewer than
    the adapter's rank, in the first round too. A token has to fit all spans that are not full.

    Attributes:
        blocks: the spans that are not full; may be empty.
        reason: the ranks found, for messages.
        inputs: the span of combinations of ``x`` alone, full or not; None if no ``A`` has moved.
    """

    blocks: tuple[AdapterBlock, ...] = ()
    reason: str = ""
    inputs: Subspace | None = None

    @property
    def full(self) -> bool:
        """Whether every span is full."""
        return not self.blocks

    def distance(self, inputs: Tensor) -> Tensor:
        """Root mean square over the spans of the sine of each input ``(..., width)``."""
        squares = [block.seen.distance(block.of(inputs)).square() for block in self.blocks]
        return torch.stack(squares).mean(0).sqrt()

    def least_distance(self, inputs: Tensor) -> Tensor:
        """A lower bound of ``distance``."""
        squares = [block.seen.least_distance(block.of(inputs)).square() for block in self.blocks]
        return torch.stack(squares).mean(0).sqrt()

    def rough_distance(self, inputs: Tensor) -> Tensor:
        """``distance``, accurate to 0.001 in float32."""
        squares = [block.seen.rough_distance(block.of(inputs)).square() for block in self.blocks]
        return torch.stack(squares).mean(0).sqrt()

    def widened(self, inputs: Tensor) -> Subspace:
        """The spans enlarged by further inputs ``(input, width)``, without those now full."""
        wider = [AdapterBlock(b.seen.widened(b.of(inputs)), b.a) for b in self.blocks]
        roomy = tuple(block for block in wider if block.seen.rank < block.seen.width)
        return replace(self, blocks=roomy)

    def filled(self, inputs: Tensor) -> bool:
        """Whether the inputs ``(input, width)`` fill every span."""
        return all(block.seen.filled(block.of(inputs)) for block in self.blocks)


def first_round(observation: Observation) -> str:
    """What adapters leak whose ``A`` is frozen, or whose ``B`` is 0; empty without any.

    One clause; empty once any ``B`` has moved and any ``A`` is sent.
    """
    sent = [name for name in observation.received if is_adapter(name)]
    if sent and all(map(is_second_factor, sent)):
        return f"A is frozen{_ALONE}"
    if is_personal(observation):
        return "B stays with the client, so that the model behind the adapters is not known"
    factors = [value for name, value in observation.sent.items() if is_second_factor(name)]
    if not factors or any(bool(value.any()) for value in factors):
        return ""
    return f"B is 0 at first and dL/dA with it{_ALONE}"


def is_personal(observation: Observation) -> bool:
    """Whether the factors B of adapters stay with the client, whose A alone is sent."""
    sent = [name for name in observation.received if is_adapter(name)]
    return bool(sent) and not any(map(is_second_factor, sent))


def combine(blocks: Sequence[AdapterBlock], reason: str) -> AdapterSpan:
    """The usable spans, with rank and width of the one that has the most room.

    A smaller span than another one misses tokens and is left out: those with small gradients, and
    the first token of a causal model in the adapter of the queries, as it attends to itself alone.
    """
    ranks = [block.seen.rank for block in blocks]
    usable = tuple(block for block in blocks if not block.full and block.seen.rank >= max(ranks))
    roomiest = max(usable or blocks, key=lambda block: block.seen.width - block.seen.rank).seen
    inputs = next((block.seen for block in blocks if block.a is None), None)
    return AdapterSpan(roomiest.basis, roomiest.most, blocks=usable, reason=reason, inputs=inputs)


def read_adapters(
    observation: Observation, names: Sequence[str], device: torch.device
) -> AdapterSpan | None:
    """The spans of one layer's inputs; None if its adapters did not move or are not finite.

    Args:
        observation: its update has to be a multiple of a gradient.
        names: names of the ``A`` of all adapters of the layer.
        device: device of the result.
    """
    pairs = [(name, second_factor(name)) for name in names]
    update = observation.update([name for pair in pairs for name in pair])
    if not all(value.isfinite().all() for value in update.values()):
        return None
    update = {name: value.to(device) for name, value in update.items() if value.any()}
    blocks, said = [], []
    several = observation.kind != "gradient" and observation.knowledge.local_steps != 1
    sent = [observation.sent[b] for _, b in pairs]
    unknown = several or is_personal(observation)
    rank = sum(b.shape[1] if unknown else _rank(b) for b in sent)
    if sides := [_side(observation, update, name) for name, _ in pairs if name in update]:
        whole = torch.cat([side for side, _ in sides], 1)
        space = span(whole, max(noise for _, noise in sides), blurred=False)
        blocks.append(AdapterBlock(Subspace(space.basis, min(space.most, rank))))
        said.append(f"dL/dA has rank {space.rank} of {blocks[-1].seen.most}")
    else:
        frozen = not any(a in observation.received for a, _ in pairs)
        still = "A is frozen" if frozen else "dL/dA is 0" + ("" if rank else ", as B is")
        said.append(still + (_ALONE if frozen or not rank else ""))
    for a, b in pairs:
        if b in update:
            seen = span(*_side(observation, update, b), blurred=False)
            blocks.append(AdapterBlock(seen, observation.sent[a].double().to(device)))
            said.append(f"dL/dB has rank {seen.rank} of {seen.most}")
    if several and sides:
        blocks = _constant(blocks)
    return combine(blocks, "; ".join(dict.fromkeys(said))) if blocks else None


def _constant(blocks: list[AdapterBlock]) -> list[AdapterBlock]:
    """The span from ``dL/dA`` alone if it is complete: several steps change ``A x``."""
    first, *others = blocks
    shown = max((block.seen.rank for block in others if not block.full), default=0)
    return blocks if first.full or first.seen.rank < EQUAL_RANK * shown else [first]


def _rank(matrix: Tensor) -> int:
    values = torch.linalg.svdvals(matrix.double())
    return int((values > _FACTOR_SINGULAR_VALUE * values[0].clamp(min=1e-30)).sum())


def _side(observation: Observation, update: dict[str, Tensor], name: str) -> tuple[Tensor, float]:
    """The gradient ``(width, outputs)`` scaled to norm 1, and the rounding error of an entry."""
    norm = update[name].norm()
    return update[name].T / norm, rounding(observation.received[name]) / float(norm)
