"""One factor of every adapter is not sent: A stays as drawn, or B stays with its client."""

from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import nn

from fedsim.defenses.base import Defense, DefenseFamily, Repeatable
from fedsim.errors import ConfigError
from fedsim.models.adapters import is_second_factor
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class FfaLora(Defense):
    """Freezes the factors A of adapters B A, so that only B is trained and sent (Sun et al. 2024).

    The gradient of B is ``G x^T A^T``: of the inputs x only their images ``A x`` of as few numbers
    as the rank are seen, in every round. With A trained, too, its own gradient ``B^T G x^T`` holds
    the inputs whole as soon as B is no longer 0.

    It was proposed to make averages exact and noise weaker, not to hide anything. The server
    broadcasts A, and an attacker replays the model with it.
    """

    title: ClassVar[str] = "FFA-LoRA"
    family: ClassVar[DefenseFamily] = "architecture"
    run_by: ClassVar[str] = "the client; adapters with a frozen factor"
    known: ClassVar[str] = "The broadcast factors, with which the model is replayed."

    def on_model(self, model: nn.Module) -> None:
        """Freeze every ``lora_A``.

        Raises:
            ConfigError: the model has no adapter.
        """
        factors = [value for name, value in model.named_parameters() if ".lora_A." in name]
        if not factors:
            raise ConfigError(
                f"ffa_lora: {type(model).__name__} has no adapter. "
                "Set task.lora_rank, or leave this defense out."
            )
        for value in factors:
            value.requires_grad = False


@dataclass(frozen=True, kw_only=True)
class FedsaLora(Repeatable):
    """Sends the factors A of adapters B A, and keeps each client's B (Guo et al. 2025).

    The client trains both factors and goes on from its own B in its next round. The gradient of A,
    ``B^T G x^T``, holds the inputs x in as many combinations as the rank; in a client's first round
    B is 0, and so is that gradient.

    It was proposed for clients that differ, not to hide anything. An attacker does not know B, so
    that it cannot replay the client's model: what stands before the adapters is exact, the layers
    behind them are those of the base model.

    The global model's B stays 0, so that its utility is that of the base model.
    """

    title: ClassVar[str] = "FedSA-LoRA"
    family: ClassVar[DefenseFamily] = "architecture"
    run_by: ClassVar[str] = "the client; adapters of which a factor is personal"
    known: ClassVar[str] = "That B is missing, and may be anything."

    def on_model(self, model: nn.Module) -> None:
        """Check that there are adapters; both factors are trained.

        Raises:
            ConfigError: the model has none.
        """
        if not any(is_second_factor(name) for name, _ in model.named_parameters()):
            raise ConfigError(
                f"fedsa_lora: {type(model).__name__} has no adapter. "
                "Set task.lora_rank, or leave this defense out."
            )

    def surrogate(self, update: Tensors) -> Tensors:
        """The same."""
        return {name: value for name, value in update.items() if not self.stays(name)}

    def stays(self, name: str) -> bool:
        """Whether it is a factor B."""
        return is_second_factor(name)
