"""Tasks of somebody else, installed as a user's package is: by entry points."""

from dataclasses import replace

from torch import Tensor
from torch.nn import functional as F

from fedsim.tasks.base import Network, Task
from fedsim.tasks.images import ImageClassification
from fedsim.tasks.text_classification import TextClassification
from fedsim.types import Batch, Rows


class Smoothed(ImageClassification):
    """Cross-entropy with a fifth of each label spread over all classes."""

    def loss(self, network: Network, batch: Batch) -> Tensor:
        """Mean over the images."""
        return F.cross_entropy(network(batch.inputs), batch.labels, label_smoothing=0.2)


class Backwards(TextClassification):
    """Sentences from their last word to the first."""

    def encode(self, rows: Rows) -> Batch:
        """As ever, of other texts."""
        texts = tuple(" ".join(reversed(str(text).split())) for text in rows.inputs)
        return super().encode(replace(rows, inputs=texts))


class Stray(Task):
    """A task that derives from none that fedsim knows."""
