"""Nats: the most that the replies of a client tell of one of its examples, by whatever attack.

All else is given to the attacker: weights, the other examples and clients, the class, the batch.
So a sum over clients tells no more than the client's own reply, and

- **bits sent**: no more than the length of a message that a receiver can decode (Shannon 1948);
- **clipping and noise**: clip^2 / (2 std^2), since a Gaussian channel whose input has that power
  carries no more, whatever the distribution of examples; once for each sum that has the example;
- **noise alone**: what ``noise_information`` measures on gradients of public rows, which holds for
  rows that are drawn like these, at the weights of the first capture.

What follows the noise in a chain is post-processing. Rounds add up: the example is in the captured
one, and in each of the others with the chance of any row, which multiplies what that round tells.
Gradients of public rows bound their own round alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.observed.replay import Replay, replay
from experiments.bounds.information import noise_information, upper_mean
from experiments.bounds.success import Noise
from experiments.plan.cells import Cell
from fedsim.defenses import build_chain
from fedsim.defenses.encoding import Encoding
from fedsim.magnitudes import cut
from fedsim.process import one_thread
from fedsim.store.capture import CaptureKey
from fedsim.tasks import load_task
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors

_ENTRIES = 2**26
"""Most values of the gradients of public rows together: 256 MB."""
_ROWS = 1000
_BOTH = 2
"""Halves: one to fit, one to measure. Fewer rows than one for each say nothing."""


def bits_sent(cell: Cell) -> float:
    """Nats of the longest of a cell's captured replies, packed as its defenses allow.

    ``Encoding`` leaves out how many coordinates of a tensor are not 0, which is added.
    """
    packed = build_chain(cell.config.defense, "defense").encode(Encoding())
    sizes = []
    for key in own_captures(cell):
        seen = cell.captures.load(key)
        sent = seen.update() if seen.kind == "weights" else seen.received
        whole = [
            value.float() if value.dtype == torch.float64 else value for value in sent.values()
        ]
        sizes.append(sum(8 * packed.size(tensor) + tensor.numel().bit_length() for tensor in whole))
    return max(sizes) * math.log(2)


def own_captures(cell: Cell) -> list[CaptureKey]:
    """Captures of clients' own steps; those of probes left out."""
    keys = cell.captures.keys()
    return [key for key in keys if cell.truth.record(key).probe == "none"]


@dataclass(frozen=True)
class ExampleReply:
    """The model that a client received, and the gradient of one example as it enters its reply."""

    model: Replay
    clip: float

    @classmethod
    def of(cls, cell: Cell, key: CaptureKey, task: Task, clip: float) -> ExampleReply | str:
        """The model of a capture, or why an example has no gradient of its own."""
        model = replay(cell.captures.load(key), task, torch.device("cpu"))
        mixing = [type(part) for part in model.network.modules() if _is_random(part)]
        if mixing and cell.config.federation.train_mode:
            return f"{mixing[0].__name__} was in train mode"
        return cls(model, clip)

    def gradient(self, batch: Batch) -> Tensors:
        """The clipped gradient of a batch of one example, for ``torch.func``."""
        update = self.model.pure_gradient(batch)
        return update if self.clip == math.inf else cut(update, self.clip)

    def gradients(self, batch: Batch) -> Tensor:
        """Those of many examples, float32 ``(row, value)``."""

        def flat(inputs: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
            single = Batch(inputs[None], labels[None], None if mask is None else mask[None])
            return torch.cat([part.flatten() for part in self.gradient(single).values()])

        if batch.mask is None:
            parts = zip(batch.inputs.split(16), batch.labels.split(16), strict=True)
            return torch.cat(
                [vmap(lambda x, y: flat(x, y, None))(*part).detach() for part in parts]
            )
        rows = zip(batch.inputs, batch.labels, batch.mask, strict=True)
        return torch.stack([flat(*row).detach() for row in rows])


def measured(cell: Cell, noise: Noise) -> float | str:
    """Nats of one reply by its noise and by gradients of public rows, or why there are none.

    The bound is the upper end of the 95 % interval of the mean over the second half of the rows.
    """
    if noise.single:
        return noise.single
    if not (cell.captures.root / "auxiliary.safetensors").exists():
        return "there are no public rows"
    task = load_task(cell.captures.root)
    reply = ExampleReply.of(cell, own_captures(cell)[0], task, noise.clip)
    if isinstance(reply, str):
        return reply
    values = sum(p.numel() for p in reply.model.parameters.values())
    public = cell.captures.auxiliary()
    count = min(len(public.inputs), _ROWS, _ENTRIES // values)
    if count < 2 * _BOTH:
        return f"gradients of {values:,} values are too large"
    with one_thread():
        rows = reply.gradients(_first(public, count))
    half = count // 2
    fit, held = _centred(rows, _classes(public, count), half)
    return upper_mean(noise_information(fit, held, noise.std))


def _first(batch: Batch, count: int) -> Batch:
    mask = None if batch.mask is None else batch.mask[:count]
    return Batch(batch.inputs[:count], batch.labels[:count], mask)


def _classes(batch: Batch, count: int) -> Tensor:
    """The class of each row; all alike where a row has many labels, as in language modelling."""
    labels = batch.labels[:count]
    return labels if labels.dim() == 1 else torch.zeros(count, dtype=torch.int64)


def _centred(rows: Tensor, classes: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Both halves, less the mean of their class in the first; of a class not there, of all."""
    fit, held = rows[:half], rows[half:]
    means = fit.mean(0).expand(int(classes.max()) + 1, -1).clone()
    for label in classes[:half].unique():
        means[label] = fit[classes[:half] == label].mean(0)
    return fit - means[classes[:half]], held - means[classes[half:]]


def _is_random(part: nn.Module) -> bool:
    return isinstance(part, _BatchNorm) or (isinstance(part, nn.Dropout) and part.p > 0)
