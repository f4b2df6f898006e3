"""Ways in which a client may alter its update, and the update the server then sees."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from clients.granted_facts import granted
from clients.train import LocalTrainer
from fedsim.config.cell import CellConfig
from fedsim.config.federation import FederationConfig
from fedsim.defenses import build_chain
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Rows, Tensors

CLIP = 0.01
"""Below the gradient norm of any sentence, so that everything is clipped: best for the attacker,
since noise in units of the clipping norm then hides the least."""
DROPOUT = 0.1
_DROPOUTS = (
    "embd_pdrop",
    "attn_pdrop",
    "resid_pdrop",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)


@dataclass(frozen=True)
class Treatment:
    """One way to send an update.

    Attributes:
        name: for the table.
        defenses: tables of defenses, behind those of the cell.
        federation: options of ``[federation]`` that it changes.
        noise: standard deviation of Gaussian noise in units of the first layer's rms gradient.
        wire: how a tensor of the update arrives.
    """

    name: str
    defenses: tuple[Mapping[str, Any], ...] = ()
    federation: Mapping[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    wire: Callable[[Tensor], Tensor] | None = None


def int8(value: Tensor) -> Tensor:
    """Round a tensor to 255 even steps between minus and plus its largest entry."""
    step = value.abs().max() / 127
    return (value / step).round() * step if step > 0 else value


def _treatments() -> Iterator[Treatment]:
    yield Treatment("none")
    for std in (1e-5, 1e-4, 1e-3):
        yield Treatment(f"noise {std:.0e}", ({"name": "gaussian_noise", "std": std},))
    for share in (0.1, 1.0):
        yield Treatment(f"noise {share:g} rms", noise=share)
    for fraction in (0.5, 0.9):
        mask = {"name": "prune", "fraction": fraction, "keep": "random"}
        yield Treatment(f"random mask {fraction:.0%}", (mask,))
    for fraction in (0.9, 0.99):
        yield Treatment(f"keep top {1 - fraction:.0%}", ({"name": "prune", "fraction": fraction},))
    yield Treatment("sign", ({"name": "sign"},))
    yield Treatment("float16 wire", wire=torch.Tensor.half)
    yield Treatment("bfloat16 wire", wire=torch.Tensor.bfloat16)
    yield Treatment("int8 wire", wire=int8)
    yield Treatment(f"dropout {DROPOUT:g}", federation={"train_mode": True})
    clipping = {"name": "dp_sgd", "clip": CLIP}
    yield Treatment("clipping alone", ({**clipping, "noise_multiplier": 0.0},))
    for epsilon in (10.0, 1.0):
        yield Treatment(f"dp_sgd, epsilon {epsilon:g}", ({**clipping, "epsilon": epsilon},))
    fedavg = {"protocol": "fedavg", "optimizer": "sgd"}
    for rate in (5e-5, 1e-3, 1e-2):
        for steps in (1, 4):
            local = {"learning_rate": rate, "local_steps": steps}
            yield Treatment(f"SGD {rate:g}, {steps} step{'s' * (steps > 1)}", (), fedavg | local)
    adamw = fedavg | {"optimizer": "adamw", "learning_rate": 5e-5}
    yield Treatment("AdamW 5e-05, 1 step", (), adamw | {"local_steps": 1})
    yield Treatment("AdamW 5e-05, 4 steps", (), adamw | {"local_steps": 4})


TREATMENTS = tuple(_treatments())


@dataclass(frozen=True)
class TreatedClient:
    """Makes the updates that a client of the cell would send under any treatment."""

    config: CellConfig
    task: TextTask
    sent: Tensors

    def observe(
        self, treatment: Treatment, rows: Rows, number: int, rms: float
    ) -> tuple[Observation, Batch]:
        """What the server sees of a client that owns these rows; and its private batch.

        Args:
            treatment: what the client does.
            rows: one batch; a privacy budget is spent on the one round that uses them all.
            number: of the client, from which its randomness derives.
            rms: of the first layer's gradient.
        """
        own = {"batch_size": len(rows), "rounds": 1}
        federation = {**self.config.federation.model_dump(), **own, **treatment.federation}
        noise = ({"name": "gaussian_noise", "std": treatment.noise * rms},)
        defense = (
            *self.config.defense,
            *map(dict, treatment.defenses),
            *(noise if treatment.noise else ()),
        )
        changes = {"federation": FederationConfig.model_validate(federation), "defense": defense}
        config = self.config.model_copy(update=changes)
        chain = build_chain(defense, "defense")
        task = _with_dropout(self.task) if config.federation.train_mode else self.task
        trainer = LocalTrainer(task, config.federation, chain, config.seed, torch.device("cpu"))
        update = trainer.run(self.sent, rows, 1, number)
        tensors, wire = update.tensors, treatment.wire
        if wire is not None:
            tensors = {name: wire(value) for name, value in tensors.items()}
        key, knowledge = CaptureKey(round=1, client=number), granted(config, update)
        return Observation(key, self.sent, tensors, update.kind, knowledge), update.batch


def _with_dropout(task: TextTask) -> TextTask:
    """The same network with dropout, whatever its configuration says."""
    old = task.spec.architecture
    new = old | {name: DROPOUT for name in _DROPOUTS if name in old}
    return replace(task, spec=task.spec.model_copy(update={"architecture": new}))
