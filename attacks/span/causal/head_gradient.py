"""The gradient of a language model's head, whose table may be that of the words, made white."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from attacks.observed.factored import Products, Vectors
from attacks.proofs.gradient_match import GradientMatcher
from fedsim.models.embeddings import embedding_names
from fedsim.types import Batch, Tensors


@dataclass(frozen=True)
class Roots:
    """Makes noise of a separable covariance white.

    Attributes:
        left: of the rows of a matrix ``(row, row)``.
        right: of its columns.
        noise: standard deviation of the entries of all tensors that have neither.
    """

    left: Tensors
    right: Tensors
    noise: float

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """A tensor of an update or of a gradient."""
        if name not in self.right:
            return value / self.noise
        value = value @ self.right[name]
        return self.left[name] @ value if name in self.left else value

    def factors(self, name: str, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """The same of a product ``left^T right``."""
        if name not in self.left:
            return left, right / self.noise
        return left @ self.left[name], right @ self.right[name]


class HeadGradient:
    """Notes what goes through the head of a network, for the gradient of its table.

    A tied table receives the slopes of the logits times the states below the head, and in the rows
    of a line's own words the slopes of the embeddings.

    Attributes:
        name: of the table of words; empty if it is not among the tensors.
        tied: whether it is the head, too.
        states: below the head in the last pass ``(line, token, width)``.
    """

    def __init__(self, network: nn.Module, update: Tensors) -> None:
        head = cast(Any, network).get_output_embeddings()
        table = embedding_names(network).word or ""
        self.tied = table in update and head.weight is network.get_parameter(table)
        self.name = table if table in update else ""
        self.states = torch.empty(0)
        self._logits = torch.empty(0)
        head.register_forward_hook(self._note)

    def _note(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.states, self._logits = inputs[0].detach(), output.detach()

    def factors(self, match: GradientMatcher, lines: Tensor) -> list[Products | Vectors]:
        """The gradients of lines ``(line, token)``, each a lane, and the slopes of their words."""
        lanes = lines[:, None]
        batch = Batch(lines, lines, torch.ones_like(lines))
        words = lanes if self.name else None
        return match.factored(match.table[lanes], batch, create_graph=False, words=words)

    def square(self, lines: Tensor, slopes: Tensor, roots: Roots) -> Tensor:
        """Squared norm ``(line,)`` of the table's gradients, made white.

        Args:
            lines: of the last pass ``(line, token)``.
            slopes: of their embeddings ``(line, token, width)``.
            roots: of the noise.
        """
        slopes = roots(self.name, slopes)
        same = (lines[:, :, None] == lines[:, None]).to(slopes)
        square = (same * (slopes @ slopes.mT)).sum((1, 2))
        if not self.tied:
            return square
        errors = self._logits[:, :-1].softmax(-1)
        errors.scatter_add_(2, lines[:, 1:, None], -torch.ones_like(errors[..., :1]))
        errors /= errors.shape[1]
        states = roots(self.name, self.states[:, :-1])
        square = square + ((errors @ errors.mT) * (states @ states.mT)).sum((1, 2))
        shared = errors.gather(2, lines[:, None].expand(-1, errors.shape[1], -1))
        return square + 2 * (shared * (states @ slopes.mT)).sum((1, 2))
