"""Dropout in the client's model: masks that the server does not know."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from fedsim.defenses.base import Defense
from fedsim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Dropout(Defense):
    """Turns on the model's dropout layers, all with one probability (Scheliga et al. 2023).

    ``federation.train_mode`` leaves each layer its own probability and turns batch statistics on,
    too; this turns on the dropout alone. The masks derive from the client's seed. An attacker who
    knows the defense knows ``p`` and not the masks: its replay is without dropout, as the mean of
    the masks is. Scheliga et al. ("DIA") search for the masks along with the images; that attack is
    not here, so results under dropout may understate what leaks. Rows of an embedding table are
    dropped by coordinates, not whole, so the set of tokens stays readable.

    Attributes:
        p: probability of an activation to be zeroed.
    """

    p: Annotated[float, Field(gt=0, lt=1)]

    def on_model(self, model: nn.Module) -> None:
        """Set the probability of the dropout layers and put them into train mode.

        Raises:
            ConfigError: the model has none.
        """
        found = False
        for part in list(model.modules()):
            layers = [child for child in part.children() if isinstance(child, _LAYERS)]
            for layer in layers:
                layer.p = self.p
                layer.training = True
            if layers:
                # Attention reads the probability off its layer and the mode off itself.
                part.training = True
            found = found or bool(layers)
        if not found:
            raise ConfigError(
                f"dropout: {type(model).__name__} has no dropout layer. "
                "Choose a model that has one, such as BERT or GPT-2, or leave this defense out."
            )


_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
