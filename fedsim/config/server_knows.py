"""The facts that the server is granted."""

from __future__ import annotations

from fedsim.config.section import ConfigSection
from fedsim.knowledge import FACTS, Fact


class ServerKnows(ConfigSection):
    """``[server_knows]``: the threat model. The public protocol is known unless it is withheld.

    Attributes:
        labels: classes of the client's examples, without their order.
        num_examples: number of examples that the client used in the round.
        all_rows: whether these are all the examples that the client owns; never told without
            their number.
        lengths: number of tokens of each text, special tokens included, without their order.
        batch_size: number of examples in a local step.
        local_steps: number of steps that the client took in the round.
        learning_rate: learning rate of the client.
        optimizer: optimiser of the client.
        train_mode: whether dropout and batch statistics were active while the client trained.
        training: the client's other options of ``[federation]``, such as its precision, schedule,
            clipping and label smoothing.
        defense: the client's defenses and their options.
        auxiliary: the rows of ``[auxiliary]``, if that section is present.
    """

    labels: bool = False
    num_examples: bool = True
    all_rows: bool = True
    lengths: bool = False
    batch_size: bool = True
    local_steps: bool = True
    learning_rate: bool = True
    optimizer: bool = True
    train_mode: bool = True
    training: bool = True
    defense: bool = True
    auxiliary: bool = True

    def grants(self) -> frozenset[Fact]:
        """The facts that are granted."""
        facts = frozenset(fact for fact in FACTS if getattr(self, fact))
        return facts if self.num_examples else facts - {"all_rows"}
