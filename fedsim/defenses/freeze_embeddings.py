"""Frozen embeddings: tables that are not trained are not sent."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedsim.defenses.base import Defense
from fedsim.errors import ConfigError
from fedsim.models.embeddings import embedding_names


@dataclass(frozen=True)
class FreezeEmbeddings(Defense):
    """Trains all but the embedding tables, whose gradient rows name the tokens (Gupta et al. 2022).

    GPT-2's word table is its output head too, so both are frozen together. A position table that
    is left trainable still tells the length of the text.

    Attributes:
        word: freeze the word embeddings.
        position: freeze the learned position embeddings.
        head: freeze the output layer with its bias, whose gradient names the tokens, too, where it
            is not the word table; Learning To Invert (Wu et al. 2022) does so.
    """

    word: bool = True
    position: bool = False
    head: bool = False

    def __post_init__(self) -> None:
        if not (self.word or self.position or self.head):
            raise ValueError(
                "word, position and head are all false, so nothing is frozen; "
                "set one to true, or use none"
            )

    def on_model(self, model: nn.Module) -> None:
        """Freeze the chosen tables.

        Raises:
            ConfigError: the model has no such table.
        """
        names = embedding_names(model)
        for chosen, kind, name in (
            (self.word, "word", names.word),
            (self.position, "position", names.position),
        ):
            if chosen and name is None:
                raise ConfigError(
                    f"freeze_embeddings.{kind}: {type(model).__name__} has no {kind} embeddings. "
                    "Choose a text model that has them, or leave this defense out."
                )
            if chosen and name is not None:
                model.get_parameter(name).requires_grad = False
        if self.head:
            output = getattr(model, "get_output_embeddings", lambda: None)()
            if output is None:
                raise ConfigError(
                    f"freeze_embeddings.head: {type(model).__name__} predicts no tokens. "
                    "Choose a language model, or leave head out."
                )
            output.requires_grad_(False)
