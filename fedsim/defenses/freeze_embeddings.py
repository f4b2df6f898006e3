"""Frozen embedding tables: they are neither trained nor sent."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedsim.defenses.base import Defense, DefenseFamily
from fedsim.errors import ConfigError
from fedsim.models.embeddings import embedding_names


@dataclass(frozen=True)
class FreezeEmbeddings(Defense):
    """Freezes the embedding tables, whose gradient rows reveal the tokens (Gupta et al. 2022).

    The gradient of a word table is 0 except in the rows of the tokens that occur. GPT-2's word
    table is also its output head, so freezing one freezes the other. A position table that is left
    trainable still reveals the length of the longest text.

    Attributes:
        word: freeze the word embeddings.
        position: freeze the learned position embeddings.
        head: freeze the output layer and its bias, whose gradient also reveals the tokens if it is
            not tied to the word table; Learning To Invert (Wu et al. 2022) freezes it.
        bias: freeze all biases. With ``word`` and ``position`` this is what LAMP assumes
            (Balunović et al. 2022, appendix A.1).
    """

    title: ClassVar[str] = "freezing embeddings"
    family: ClassVar[DefenseFamily] = "architecture"
    run_by: ClassVar[str] = "the client; fine-tuning recipes have it"
    known: ClassVar[str] = "Which tensors are missing."

    word: bool = True
    position: bool = False
    head: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        if not (self.word or self.position or self.head or self.bias):
            raise ValueError(
                "word, position, head and bias are all false, so nothing is frozen; "
                "set one to true, or use none"
            )

    def on_model(self, model: nn.Module) -> None:
        """Freeze the chosen parameters.

        Raises:
            ConfigError: the model does not have one of the chosen tables.
        """
        for parameter, value in model.named_parameters():
            if self.bias and parameter.endswith("bias"):
                value.requires_grad = False
        names = embedding_names(model)
        for chosen, kind, name in (
            (self.word, "word", names.word),
            (self.position, "position", names.position),
        ):
            if chosen and name is None:
                raise ConfigError(
                    f"freeze_embeddings.{kind}: {type(model).__name__} has no {kind} embeddings. "
                    "Choose a text model with such a table, or leave this defense out."
                )
            if chosen and name is not None:
                model.get_parameter(name).requires_grad = False
        if self.head:
            output = getattr(model, "get_output_embeddings", lambda: None)()
            if output is None:
                raise ConfigError(
                    f"freeze_embeddings.head: {type(model).__name__} does not predict tokens. "
                    "Choose a language model, or leave head out."
                )
            output.requires_grad_(False)
