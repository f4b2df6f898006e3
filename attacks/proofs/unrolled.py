"""A client's local steps taken again on guessed sentences."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import factorial

from torch import nn

from attacks.observed.declared import declared_training
from attacks.proofs.certificate import batch_of
from fedsim.capture import Observation
from fedsim.defenses.chain import Chain
from fedsim.local.client import LocalClient
from fedsim.tasks.text import TextTask

Lines = Sequence[Sequence[int]]

_ORDERS = 24  # of the sentences, that are tried
_ROUNDING = 5e-3  # largest error of a true batch: Adam makes much of the rounding of small entries


@dataclass(frozen=True)
class Unrolled:
    """Compares an update with that of the client's local steps on a guess.

    After several steps, or one of Adam, an update is no multiple of a gradient, so that no gradient
    can prove a guess. The steps themselves can: the order of a client's examples is not known, but
    with one example a step, and few of them, each order is tried, as in Dimitrov et al. 2022 (Data
    Leakage in Federated Averaging), whose search is order-free for the same reason.

    Attributes:
        client: trains as the granted facts say, from the broadcast weights, in eval mode.
        observation: grants how the client trained.
    """

    client: LocalClient
    observation: Observation

    @classmethod
    def of(cls, observation: Observation, task: TextTask, network: nn.Module) -> Unrolled | None:
        """None where the granted facts do not tell the steps, or there are too many orders.

        Args:
            observation: of one client.
            task: a language model's.
            network: as broadcast, in float32.

        Raises:
            CannotAttack: the client trained with an option that this version does not have.
        """
        known = observation.knowledge
        steps, size, count = known.local_steps, known.batch_size, known.num_examples
        if None in (known.learning_rate, known.optimizer, known.training, known.local_steps, size):
            return None
        if known.train_mode is not False or known.defense != () or known.cohort > 1:
            return None
        if observation.kind == "gradient" or task.spec.num_classes:
            return None
        assert steps is not None
        assert size is not None
        ordered = steps == 1 or (size == 1 and factorial(steps) <= _ORDERS)
        if not ordered or count != steps * size:
            return None
        model = copy.deepcopy(network)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in observation.received)
        config, device = declared_training(observation), next(model.parameters()).device
        client = LocalClient(task, config, Chain(), seed=0, device=device, network=model)
        return cls(client, observation)

    def proves(self, lines: Lines) -> bool:
        """Whether the steps on the lines, in some order, make the update."""
        return self.error(lines) <= _ROUNDING

    def error(self, lines: Lines) -> float:
        """``||U - V|| / ||U||`` for the update ``U`` and that of the best order of the lines."""
        return min(self._error(order) for order in self._orders(lines))

    def _orders(self, lines: Lines) -> Iterator[Lines]:
        if self.observation.knowledge.local_steps == 1:
            yield lines
        else:
            yield from permutations(lines)

    def _error(self, lines: Lines) -> float:
        """The error of the steps on batches of the lines, in their order."""
        seen, size = self.observation, self.client.config.batch_size
        batch = batch_of(lines, self.client.task, [-1] * len(lines))
        plan = [range(start, start + size) for start in range(0, len(lines), size)]
        sent = self.client.defend(seen.sent, batch, plan, round_=1, client=0).tensors
        made = replace(seen, received=sent, kind="weights")
        left = whole = 0.0
        for name in sent:
            goal, guess = (one.update((name,))[name] for one in (seen, made))
            left += float((goal - guess).square().sum())
            whole += float(goal.square().sum())
        return float((left / max(whole, 1e-30)) ** 0.5)
