"""A literal implementation of LAMP (Balunovic et al. 2022), the benchmark's reference.

One sentence and one guess at a time. Every weight gradient is formed, and differentiated again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.texts.frames import frame, words_of
from attacks.texts.lamp import LAMP
from attacks.texts.language_prior import LanguagePrior
from attacks.texts.matching import Distance
from attacks.texts.text_search import transforms
from fedsim.store.capture import Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Tensors


@dataclass(frozen=True)
class NaiveMatching:
    """The distance of gradients, by autograd.

    Attributes:
        network: a classifier of transformers whose parameters require a gradient.
        observed: what is compared, by name of the parameter.
        alpha_l1: weight of L1 in ``l2l1``.
    """

    network: nn.Module
    observed: Tensors
    labels: Tensor
    distance: Distance
    alpha_l1: float = 0.01

    def __call__(self, words: Tensor, *, create_graph: bool) -> Tensor:
        """Of one guess, word embeddings ``(sentence, token, width)`` without padding."""
        loss = F.cross_entropy(self.network(inputs_embeds=words).logits, self.labels)
        own = dict(self.network.named_parameters())
        compared = [own[name] for name in self.observed]
        gradients = torch.autograd.grad(loss, compared, create_graph=create_graph)
        terms = map(self._term, gradients, self.observed.values())
        total = torch.stack(list(terms)).sum()
        return total / len(compared) if self.distance == "cosine" else total

    def slope(self, words: Tensor) -> Tensor:
        """Of the distance in the words: the double backward."""
        point = words.detach().requires_grad_()
        slope: Tensor = torch.autograd.grad(self(point, create_graph=True), point)[0]
        return slope

    def _term(self, gradient: Tensor, seen: Tensor) -> Tensor:
        if self.distance == "cosine":
            cosine: Tensor = (gradient * seen).sum() / (gradient.norm() * seen.norm())
            return 1 - cosine
        square = (gradient - seen).square().sum()
        if self.distance == "l2":
            return square
        return square + self.alpha_l1 * (gradient - seen).abs().sum()


@dataclass(frozen=True)
class NaiveLAMP:
    """The search of ``options`` for one sentence whose label and length are granted.

    It draws the same numbers as ``LAMP`` does, so that the two differ by rounding alone.

    Attributes:
        compared: names of the parameters whose gradients are compared.
    """

    options: LAMP
    task: TextTask
    prior: LanguagePrior
    compared: Sequence[str]

    def attack(self, seen: Observation, rng: torch.Generator) -> Tensor:
        """The guessed ids ``(1, token)``."""
        return _Search(self, seen, rng).run()


class _Search:
    def __init__(self, attack: NaiveLAMP, seen: Observation, rng: torch.Generator) -> None:
        options, task, facts = attack.options, attack.task, seen.knowledge
        assert facts.labels is not None
        assert facts.lengths is not None
        self._options, self._rng = options, rng
        self._language: Any = attack.prior.network
        network: Any = task.model(seen.sent)
        observed = {name: seen.received[name] for name in attack.compared}
        labels = torch.tensor(facts.labels)
        self._matching = NaiveMatching(network, observed, labels, options.distance)
        self._table: Tensor = network.get_input_embeddings().weight.detach()
        self._size = self._table.norm(dim=1).mean()
        self._forbidden = torch.ones(len(self._table), dtype=torch.bool)
        self._forbidden[words_of(task)] = False
        before, after = frame(task)
        self._first, self._last = len(before), facts.lengths[0] - len(after) - 1
        words = self._last + 1 - self._first
        self._ids = torch.tensor([before + [0] * words + after])
        self._best, self._lowest = torch.empty(0), float("inf")

    def run(self) -> Tensor:
        options, words = self._options, self._start()
        optimizer = torch.optim.Adam([words], options.learning_rate)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, options.decay_every, 0.89)
        for step in range(1, options.steps + 1):
            words.grad = self._slope(words)
            optimizer.step()
            schedule.step()
            words.copy_(self._framed(words))
            ids = self._nearest(words)
            burnt_in = step > options.steps // 10
            if burnt_in and step % options.discrete_every == 1 % options.discrete_every:
                order = self._order(words, ids)
                moments = [v for v in optimizer.state[words].values() if v.dim()]
                for tensor in (words, *moments):
                    tensor.copy_(tensor[:, order])
                if order.tolist() != list(range(len(order))):
                    self._lowest = float("inf")
        ends = [self._nearest(self._best), self._nearest(words)]
        return min(ends, key=lambda ids: self._judge(self._table[ids], ids))

    def _start(self) -> Tensor:
        """The best of random embeddings, then of orders of its words, at the vocabulary's norm."""
        draws, shape = self._options.starts, (*self._ids.shape, self._table.shape[1])
        drawn = torch.randn(draws, *shape, generator=self._rng)
        best = min(map(self._framed, drawn), key=self._distance)
        orders = [self._shuffle() for _ in range(draws)]
        best = min([best, *(best[:, order] for order in orders)], key=self._distance)
        return self._framed(best * self._size / best.norm(dim=-1, keepdim=True))

    def _shuffle(self) -> Tensor:
        order, places = torch.arange(self._ids.shape[1]), torch.arange(self._first, self._last + 1)
        order[places] = places[torch.randperm(len(places), generator=self._rng)]
        return order

    def _framed(self, words: Tensor) -> Tensor:
        framed = self._table[self._ids]
        framed[:, self._first : self._last + 1] = words[:, self._first : self._last + 1]
        return framed

    def _distance(self, words: Tensor) -> float:
        return float(self._matching(words, create_graph=False))

    def _slope(self, words: Tensor) -> Tensor:
        point = words.detach().requires_grad_()
        off = point.norm(dim=-1).mean() - self._size
        distance = self._matching(point, create_graph=True)
        objective = distance + self._options.alpha_reg * off.square()
        if (value := objective.item()) < self._lowest:
            self._best, self._lowest = words.clone(), value
        slope: Tensor = torch.autograd.grad(objective, point)[0]
        return slope

    def _nearest(self, words: Tensor) -> Tensor:
        """The tokens of largest cosine, over the whole table, at every step as LAMP's code does."""
        norms = words.norm(dim=-1, keepdim=True) * self._table.norm(dim=1)
        cosine = (words @ self._table.T / norms).masked_fill(self._forbidden, -torch.inf)
        ids = self._ids.clone()
        ids[:, self._first : self._last + 1] = cosine.argmax(-1)[:, self._first : self._last + 1]
        return ids

    def _order(self, words: Tensor, ids: Tensor) -> Tensor:
        """The best of the proposed orders, each judged by itself."""
        count = self._options.proposals
        orders = transforms(self._first, self._last, ids.shape[1], count, self._rng)
        scores = [self._judge(words[:, order], ids[:, order]) for order in orders]
        return orders[scores.index(min(scores))]

    def _judge(self, words: Tensor, ids: Tensor) -> float:
        with torch.no_grad():
            logits = self._language(input_ids=ids).logits[0, :-1]
            likely = F.cross_entropy(logits, ids[0, 1:]).item()
        return self._distance(words) + self._options.alpha_lm * likely
