"""Dropout in the client's model, with masks that the server does not know."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from fedsim.defenses.base import Defense, DefenseFamily
from fedsim.defenses.strength import Strength
from fedsim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Dropout(Defense):
    """Activates the model's dropout layers, all with the same probability (Scheliga et al. 2023).

    ``federation.train_mode`` would leave each layer its own probability and also activate batch
    statistics; this activates only dropout. The masks are derived from the client's seed. An
    attacker who knows the defense knows ``p`` but not the masks, so its replay runs without
    dropout, which is the mean over masks. Scheliga et al. ("DIA") search for the masks along with
    the images; that attack is not included, so results under dropout may understate the leakage.
    Dropout zeroes single coordinates of an embedding, not whole rows, so the set of tokens remains
    readable.

    Attributes:
        p: probability with which an activation is zeroed.
    """

    family: ClassVar[DefenseFamily] = "architecture"
    run_by: ClassVar[str] = "the client"
    known: ClassVar[str] = "The probability; the masks are private."

    p: Annotated[float, Field(gt=0, lt=1)]

    def on_model(self, model: nn.Module) -> None:
        """Set the probability of the dropout layers and put them into train mode.

        Raises:
            ConfigError: the model has no dropout layer.
        """
        any_layer = False
        for part in list(model.modules()):
            layers = [child for child in part.children() if isinstance(child, _LAYERS)]
            for layer in layers:
                layer.p = self.p
                layer.training = True
            if layers:
                # Attention takes the probability from its layer but the mode from itself.
                part.training = True
            any_layer = any_layer or bool(layers)
        if not any_layer:
            raise ConfigError(
                f"dropout: {type(model).__name__} has no dropout layer. "
                "Choose a model with dropout, such as BERT or GPT-2, or leave this defense out."
            )

    @property
    def strength(self) -> Strength:
        """The probability."""
        return Strength("p", 0.05, 0.95, "linear")


_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
