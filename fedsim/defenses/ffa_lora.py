"""FFA-LoRA: the first factor of every adapter stays as it was drawn."""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import nn

from fedsim.defenses.base import Defense, DefenseFamily
from fedsim.errors import ConfigError


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
