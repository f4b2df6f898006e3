"""Distances between the gradients of many guesses and the observed ones, from factors alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from attacks.observed.declared import declared
from attacks.observed.distance import EPSILON
from attacks.observed.factored import Factored, Products, Vectors
from attacks.texts.dense import (
    Rule,
    coordinate_sum,
    difference,
    soft_sign,
    soft_square,
    square_within,
)
from attacks.texts.low_rank import factor
from fedsim.knowledge import MULTIPLES
from fedsim.store.capture import Observation
from fedsim.types import Batch, Tensors

Distance: TypeAlias = Literal["cosine", "l2", "l2l1"]
TextForm: TypeAlias = Literal["plain", "support", "tanh"]

ALPHA_L1 = 0.01
"""Weight of absolute differences, as LAMP's authors run TAG."""
SOFTNESS = 0.3
"""Width of the tanh that replaces a sign, in root mean squares of the tensor."""


@dataclass(frozen=True, slots=True)
class TextObjective:
    """The distance between gradients.

    Attributes:
        distance: ``cosine`` is the mean over tensors of ``1 - cosine``; ``l2`` the sum of squared
            differences (DLG); ``l2l1`` adds .01 times the absolute differences (TAG).
        form: ``support`` leaves out coordinates received as 0, for pruned updates. For signs
            ``tanh`` replaces the distance (Wu et al. 2022, appendix A) by the cosine distance
            between the signs and ``tanh(G / tau)``, a mean over tensors that does not depend on
            the scale; in the paper it has no tau.
    """

    distance: Distance = "cosine"
    form: TextForm = "plain"

    @property
    def is_mean(self) -> bool:
        """Whether the distance is a mean over tensors, which does not depend on the scale."""
        return self.distance == "cosine" or self.form == "tanh"

    @property
    def needs_coordinates(self) -> bool:
        """Whether the full observed gradient is needed, and not just its factors."""
        return self.distance == "l2l1" or self.form != "plain"


class Matching:
    """The distance between the gradient of each guess and what its victim sent.

    Guesses have the shape ``(victim, candidate, example, token, width)``.
    """

    def __init__(
        self, model: Factored, observed: Iterable[Tensors], objective: TextObjective, rank: int
    ) -> None:
        """Keep observed gradients of a rank below ``rank`` as factors, which halves the work.

        Args:
            model: computes the gradient of a guess.
            observed: float64 gradients, one victim after another.
            objective: the distance.
            rank: at least the number of tokens in a victim's gradient, over all local steps.
        """
        self._model, self._objective = model, objective
        self._targets = make_targets(
            model.layout,
            model.weights,
            model.names,
            observed,
            0 if objective.needs_coordinates else rank,
            next(model.network.parameters()),
        )

    def __call__(
        self,
        guess: Tensor,
        batch: Batch,
        victims: slice = slice(None),
        *,
        create_graph: bool = True,
    ) -> Tensor:
        """The distance ``(victim, candidate)``.

        Args:
            guess: word embeddings.
            batch: labels and mask of all examples of all guesses, in their order.
            victims: whose guesses they are.
            create_graph: whether the result is to be differentiated.
        """
        total = guess.new_zeros(guess.shape[:2])
        count = guess.new_zeros(len(guess), 1)
        for group in self._model(guess.flatten(0, 1), batch, create_graph=create_graph):
            target = self._targets[group.names].only(victims)
            terms = _Terms(group, target, len(guess)).distance(self._objective)
            total = total + torch.where(target.alive[..., None], terms, 0).sum(0)
            count += target.alive.sum(0)[:, None]
        return total / count if self._objective.is_mean else total


class _Terms:
    """Terms of the distance for one group of layers, each ``(layer, victim, candidate)``."""

    def __init__(self, group: Products | Vectors, target: GradientTarget, victims: int) -> None:
        self._target = target
        self._left: Tensor
        self._right: Tensor | None = None
        if isinstance(group, Products):
            self._left, self._right = (
                side.unflatten(1, (victims, -1)) for side in (group.left, group.right)
            )
            self._size = group.left.shape[-1] * group.right.shape[-1]
        else:
            self._left = group.values.unflatten(1, (victims, -1))
            self._size = self._left.shape[-1]

    def distance(self, objective: TextObjective) -> Tensor:
        """The distance of each layer."""
        if objective.form == "tanh":
            return self._soft_signs()
        within = objective.form == "support"
        if objective.distance == "cosine":
            square = self._sum(square_within) if within else self._square()
            return 1 - self._inner() / (_root(square) * self._target.norm[..., None])
        if objective.distance == "l2" and not within:
            return self._square() - 2 * self._inner() + self._target.norm[..., None].square()
        alpha = ALPHA_L1 if objective.distance == "l2l1" else 0.0
        return self._sum(difference(alpha, within=within)) + self._out_of_reach(alpha)

    def _inner(self) -> Tensor:
        """``<G, observed>``."""
        if self._right is None:
            return (self._left * self._observed()).sum(-1)
        candidates = self._left.shape[2]
        left, right = self._left.flatten(2, 3), self._right.flatten(2, 3)
        if self._target.factors is None:
            products = (left @ self._full()) * right
        else:
            products = (left @ self._target.factors[0]) * (right @ self._target.factors[1])
        inner: Tensor = products.unflatten(2, (candidates, -1)).sum((3, 4))
        return inner

    def _square(self) -> Tensor:
        """``||G||^2``; for ``G = L^T R`` this is ``sum (L L^T) * (R R^T)``, elementwise."""
        if self._right is None:
            return self._left.square().sum(-1)
        grams = (self._left @ self._left.mT) * (self._right @ self._right.mT)
        return grams.sum((3, 4)).clamp(min=0)

    def _soft_signs(self) -> Tensor:
        """``1 - cosine`` of ``tanh(G / width)`` and the observed signs."""
        width = SOFTNESS * _root(self._square().detach() / self._size)
        inner, square = (self._sum(rule, width) for rule in (soft_sign, soft_square))
        signs = self._full().sign().flatten(2).square().sum(2)[..., None]
        return 1 - inner / (_root(square) * _root(signs))

    def _sum(self, rule: Rule, width: Tensor | None = None) -> Tensor:
        """Sum of the rule over all coordinates of ``G / width``."""
        observed = self._full()
        if self._right is None:
            # A vector is its product with 1, so that the rule is differentiated as for weights.
            left = self._left[..., None, :]
            right = torch.ones_like(left[..., :1])
            observed = observed[..., : self._size, None]
        else:
            left, right = self._left, self._right
        if width is not None:
            left = left / width[..., None, None]
        layers = zip(left, right, observed, strict=True)
        return torch.stack([coordinate_sum(*layer, rule) for layer in layers])

    def _observed(self) -> Tensor:
        """The observed vector; for a table only the rows that the guess reaches."""
        return self._full()[:, :, None, : self._size]

    def _out_of_reach(self, alpha_l1: float) -> Tensor | float:
        """The constant contribution of a table's other rows, which no guess reaches."""
        if self._right is not None:
            return 0.0
        rest = self._full()[..., None, self._size :]
        return rest.square().sum(-1) + alpha_l1 * rest.abs().sum(-1)

    def _full(self) -> Tensor:
        assert self._target.full is not None
        return self._target.full


def _root(square: Tensor) -> Tensor:
    """The square root, with a finite slope at 0."""
    return (square + EPSILON**2).sqrt()


def adapted(objective: TextObjective, observation: Observation) -> TextObjective:
    """The distance that fits what the declared defense leaves, by its ``distortions``.

    Zeros are left out, and where the length was cut, sums of differences make way for the cosine.
    Signs of a batch of several sentences take ``tanh``. Those of one sentence take the cosine: by
    it more tokens came back than by ``tanh`` or by the paper's hinge, the share of the energy with
    the wrong sign (.73, .58 and .63 of those of six phrases on the built-in BERT, mean of two
    seeds).
    """
    lost = declared(observation).distortions
    if "sign" in lost:
        objective = _of_signs(objective, observation)
    if "scale" in lost and not objective.is_mean:
        objective = replace(objective, distance="cosine")
    # What was pruned before has no sign.
    support = "sparsity" in lost and "sign" not in lost
    return replace(objective, form="support") if support else objective


def stepped(objective: TextObjective, observation: Observation) -> TextObjective:
    """The distance that fits what the client's local steps leave of a gradient.

    The first step of Adam is the sign of each coordinate and a few more are nearly so; sums of
    differences make way as for declared signs. Where steps are clipped their length is not known,
    and they make way for the cosine.
    """
    known = observation.knowledge
    if observation.kind == "gradient" or objective.is_mean:
        return objective
    if known.optimizer not in MULTIPLES:
        return _of_signs(objective, observation)
    clipped = bool((known.training or {}).get("max_grad_norm"))
    return replace(objective, distance="cosine") if clipped else objective


def _of_signs(objective: TextObjective, observation: Observation) -> TextObjective:
    if observation.knowledge.num_examples != 1:
        return replace(objective, form="tanh")
    return objective if objective.is_mean else replace(objective, distance="cosine")


Thin = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class GradientTarget:
    """Observed gradient of one group of layers.

    Attributes:
        full: ``(layer, victim, a, b)`` of weights, ``(layer, victim, coordinate)`` of vectors and
            tables; None where factors stand for it.
        factors: ``left (layer, victim, a, rank)`` and ``right (layer, victim, b, rank)``.
        norm: ``(layer, victim)``; 1 where the gradient is zero.
        alive: whether there is a gradient to compare, ``(layer, victim)``.
    """

    full: Tensor | None
    factors: Thin | None
    norm: Tensor
    alive: Tensor

    def only(self, victims: slice) -> GradientTarget:
        """The targets of a subset of the victims."""
        factors = self.factors
        return GradientTarget(
            None if self.full is None else self.full[:, victims],
            None if factors is None else (factors[0][:, victims], factors[1][:, victims]),
            self.norm[:, victims],
            self.alive[:, victims],
        )


def make_targets(
    groups: Iterable[tuple[str, ...]],
    weights: frozenset[str],
    living: frozenset[str],
    observed: Iterable[Tensors],
    rank: int,
    like: Tensor,
) -> dict[tuple[str, ...], GradientTarget]:
    """One target for each group of parameter names.

    Args:
        groups: names of layers of the same shape.
        weights: names that are matrices ``left^T right``; any other gradient is flattened.
        living: names whose gradient is not analytically zero.
        observed: gradients of the victims in order, float64.
        rank: a group whose weights all have a lower rank is kept as factors.
        like: a tensor of the dtype and device to use.
    """
    seen: dict[str, list[_Seen]] = {name: [] for group in groups for name in group}
    for victim in observed:
        for name, layer in seen.items():
            value = victim[name].to(like.device)
            thin = factor(value, rank) if name in weights else None
            whole = None if thin else (value if name in weights else value.flatten()).to(like)
            layer.append(_Seen(whole, thin and (thin[0].to(like), thin[1].to(like)), value.norm()))
    return {
        group: _target([seen[name] for name in group], [name in living for name in group])
        for group in groups
    }


@dataclass(frozen=True, slots=True)
class _Seen:
    full: Tensor | None
    thin: Thin | None
    norm: Tensor

    def whole(self) -> Tensor:
        if self.full is not None:
            return self.full
        assert self.thin is not None
        return self.thin[0] @ self.thin[1].T


def _target(layers: Sequence[Sequence[_Seen]], living: Sequence[bool]) -> GradientTarget:
    norm = torch.stack([torch.stack([victim.norm for victim in victims]) for victims in layers])
    alive = (norm > 0) & torch.tensor(living, device=norm.device)[:, None]
    # Never 0, as it is divided by: what is not alive is computed, too, and then left out.
    norm = norm.where(norm > 0, 1)
    thin = [[victim.thin for victim in victims if victim.thin is not None] for victims in layers]
    if all(len(factored) == len(victims) for factored, victims in zip(thin, layers, strict=True)):
        left, right = (
            torch.stack([torch.stack([pair[side] for pair in factored]) for factored in thin])
            for side in (0, 1)
        )
        return GradientTarget(None, (left, right), norm.to(left), alive)
    full = torch.stack([torch.stack([victim.whole() for victim in victims]) for victims in layers])
    return GradientTarget(full, None, norm.to(full), alive)
