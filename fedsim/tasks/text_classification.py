"""Text classification by a transformer."""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.tasks.base import Network
from fedsim.tasks.classification import utility
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Rows


class TextClassification(TextTask):
    """Text classification by cross-entropy of one class per text.

    The network gets the true attention mask.
    """

    def labels(self, rows: Rows, inputs: Tensor, mask: Tensor) -> Tensor:
        """Classes ``(batch,)``."""
        del inputs, mask
        return rows.labels

    def loss(self, network: Network, batch: Batch) -> Tensor:
        """Mean cross-entropy over the texts."""
        return F.cross_entropy(self._logits(network, batch), batch.labels)

    def _logits(self, network: Network, batch: Batch) -> Tensor:
        logits: Tensor = self.outputs(network, batch).logits
        return logits

    def evaluate(self, network: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Loss, accuracy and, for two classes, Matthews' correlation (CoLA's own measure)."""
        return utility(network, batches, lambda batch: self._logits(network, batch))


class TextScoring(TextClassification):
    """Texts with a head whose outputs are no probabilities of one class.

    What the loss makes of the outputs is not needed: its slopes there, which a head's gradient
    tells, take the place of labels.
    """

    def loss(self, network: Network, batch: Batch) -> Tensor:
        """The sum of outputs, each times its slope; ``batch.labels`` are ``(batch, output)``."""
        logits = self._logits(network, batch)
        return (logits * batch.labels.to(logits).reshape(len(logits), -1)).sum()
