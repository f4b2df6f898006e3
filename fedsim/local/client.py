"""One client's round: the work on given batches, without any data set."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedsim.accountant import Schedule
from fedsim.config.federation import FederationConfig
from fedsim.defenses.base import Step
from fedsim.defenses.chain import Chain
from fedsim.local.steps import Descent
from fedsim.seeds import derive, generator, seeded
from fedsim.tasks.base import Task, load_state, state
from fedsim.tasks.language_modelling import IGNORED
from fedsim.types import Batch, Tensors


@dataclass(frozen=True, slots=True)
class Defended:
    """Update of a client with its defenses.

    Attributes:
        tensors: gradients or trained weights that are sent; frozen parameters are absent.
        loss: mean training loss over the steps.
        update: the defended update behind ``tensors``, for parameters only.
        learning_rate: mean over the local steps; that of the server under FedSGD.
        memory: what the client keeps for its next round: its own parameters, and what was not sent
            of its update; empty if no defense asks for it.
    """

    tensors: Tensors
    loss: float
    update: Tensors
    learning_rate: float
    memory: Tensors


@dataclass(frozen=True)
class LocalClient:
    """What a client makes of batches, as ``[federation]`` describes it, with its defenses.

    FedSGD (McMahan et al. 2017) computes the mean gradient of one batch. FedAvg takes local steps
    and sends the weights. Where a defense works on single gradients, each step uses their defended
    mean; defenses of the update are applied once, at the end.

    Clients, ``fedsim doctor``, the audit's canaries and attacks that replay a client all run this
    code, so that an option of local training means the same to each of them.

    Attributes:
        seed: seed of the experiment; all randomness derives from (seed, round, client).
        network: trained by each client in turn, whose update is void once the next one trains; None
            for a new one each.
    """

    task: Task
    config: FederationConfig
    chain: Chain
    seed: int
    device: torch.device
    network: nn.Module | None = field(default=None, kw_only=True)

    def fit(self, rows: int) -> Self:
        """The same client with ``rows`` rows, its privacy budget turned into noise."""
        return replace(self, chain=self.chain.fit(Schedule.of(self.config, rows)))

    def defend(
        self,
        sent: Tensors,
        batch: Batch,
        plan: Sequence[Sequence[int]],
        round_: int,
        client: int,
        memory: Tensors | None = None,
    ) -> Defended:
        """Train and apply the defenses.

        A defense whose noise depends on the client has to be fitted first.

        Args:
            sent: the broadcast parameters and buffers.
            batch: the distinct examples of the round.
            plan: examples of each local step, as indices into ``batch``.
            round_: number of the round, from 1; random numbers depend on it and on the client.
            client: number of the client, from 0.
            memory: what the client kept after its last round; None or empty in its first.
        """
        memory = memory or {}
        personal = {name: value for name, value in memory.items() if self.chain.stays(name)}
        sent, memory = (
            sent | personal,
            {k: value for k, value in memory.items() if k not in personal},
        )
        model = self._model(sent)
        model.train(self.config.train_mode)
        self.chain.on_model(model)
        if self._sends_statistics:
            self.chain.on_statistics(model)
        rng = generator(self.seed, "defense", round_, client)
        batch = batch.to(self.device)
        with seeded(derive(self.seed, "dropout", round_, client)):
            if self.config.protocol == "fedsgd":
                mean, loss = self.gradient(model, batch, rng)
                update, remainder = self._sent(mean, memory, rng)
                tensors, rate = update, self.config.learning_rate
                personal = {
                    k: sent[k].to(g) - rate * g for k, g in mean.items() if self.chain.stays(k)
                }
            else:
                loss, rate = self._train(model, batch, plan, round_, rng)
                trained = {k: p.detach() for k, p in model.named_parameters() if p.requires_grad}
                start = {name: sent[name].to(self.device) for name in trained}
                update = _difference(start, trained)
                personal = {
                    name: value for name, value in trained.items() if self.chain.stays(name)
                }
                remainder = {}
                if self.chain.changes_update:  # otherwise the weights are sent unchanged
                    update, remainder = self._sent(update, memory, rng)
                    trained = _difference(start, update)
                tensors = trained
        tensors = tensors | self._buffers(model)
        tensors = {name: value.detach().cpu() for name, value in tensors.items()}
        personal = {name: value.cpu() for name, value in personal.items()}
        return Defended(tensors, loss, update, rate, remainder | personal)

    def _model(self, sent: Tensors) -> nn.Module:
        if self.network is None:
            return self.task.model(sent, device=self.device)
        load_state(self.network, sent)
        return self.network

    def _sent(
        self, update: Tensors, memory: Tensors, rng: torch.Generator
    ) -> tuple[Tensors, Tensors]:
        """The update that is sent, and what is left of it for the next round."""
        if not self.chain.remembers:
            return self.chain.on_update(update, rng), {}
        whole = {
            name: value + memory[name].to(value) if name in memory else value
            for name, value in update.items()
        }
        sent = self.chain.on_update(whole, rng)
        remainder = {
            k: value - sent[k] if k in sent else value
            for k, value in whole.items()
            if not self.chain.stays(k)
        }
        return sent, {name: value.cpu() for name, value in remainder.items()}

    def gradient(
        self, model: nn.Module, batch: Batch, rng: torch.Generator
    ) -> tuple[Tensors, float]:
        """Mean gradient with defenses, and mean loss."""
        batch = self.chain.on_batch(batch, model, rng)
        step = Step(model, batch, self.task.loss)
        if not self.chain.per_example:
            gradient, loss = mean_gradient(self.task, self.config, model, batch)
            return self.chain.on_step(gradient, step, rng), loss
        losses = []

        def single() -> Iterator[Tensors]:
            for gradient, loss in self.single_gradients(model, batch):
                losses.append(loss)
                yield gradient

        mean = self.chain.on_step(self.chain.mean(single(), rng), step, rng)
        return mean, sum(losses) / len(losses)

    def single_gradients(self, model: nn.Module, batch: Batch) -> Iterator[tuple[Tensors, float]]:
        """Gradient and loss of each example, one by one: few gradients fill a machine's memory."""
        for i in range(len(batch)):
            yield mean_gradient(self.task, self.config, model, batch[i])

    def _train(
        self,
        model: nn.Module,
        batch: Batch,
        plan: Sequence[Sequence[int]],
        round_: int,
        rng: torch.Generator,
    ) -> tuple[float, float]:
        """Take the steps in place; return mean loss and mean learning rate."""
        parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
        descent = Descent(self.config, parameters, len(plan), round_)
        losses = []
        for step in plan:
            gradient, loss = self.gradient(model, batch[list(step)], rng)
            descent.step(gradient)
            losses.append(loss)
        return sum(losses) / len(losses), descent.learning_rate

    @property
    def _sends_statistics(self) -> bool:
        return self.config.train_mode and self.config.batch_statistics == "sent"

    def _buffers(self, model: nn.Module) -> Tensors:
        """Batch statistics, which only training changes; empty unless they are sent."""
        if not self._sends_statistics:
            return {}
        parameters = {name for name, _ in model.named_parameters()}
        return {name: value for name, value in state(model).items() if name not in parameters}


def _difference(first: Tensors, second: Tensors) -> Tensors:
    return {name: first[name] - value for name, value in second.items()}


_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LARGEST_SCALE = 16  # exponent of 2, as in torch.amp.GradScaler


def mean_gradient(
    task: Task, config: FederationConfig, model: nn.Module, batch: Batch
) -> tuple[Tensors, float]:
    """Gradient of each trainable parameter, 0 where the loss does not depend on it, and the loss.

    Both are means over the micro-batches of ``accumulation``.
    """
    parts = torch.arange(len(batch)).chunk(config.accumulation)
    sums: Tensors = {}
    losses = []
    for part in parts:
        rows = batch if len(parts) == 1 else batch[part.tolist()]
        gradient, loss = _gradient(task, config, model, rows)
        sums = {name: sums[name] + value for name, value in gradient.items()} if sums else gradient
        losses.append(loss)
    if len(parts) > 1:
        sums = {name: value / len(parts) for name, value in sums.items()}
    return sums, sum(losses) / len(losses)


def _gradient(
    task: Task, config: FederationConfig, model: nn.Module, batch: Batch
) -> tuple[Tensors, float]:
    parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
    dtype = _DTYPES.get(config.precision)
    network = model if dtype is None else _Autocast(model, dtype, batch.inputs.device.type)
    if config.label_smoothing:
        batch = smoothed(task, model, batch, config.label_smoothing)
    loss = task.loss(network, batch)
    exponent = _LARGEST_SCALE if config.precision == "fp16" else 0
    while True:
        gradients = torch.autograd.grad(
            loss * 2.0**exponent if exponent else loss,
            list(parameters.values()),
            allow_unused=True,
            materialize_grads=True,
            retain_graph=exponent > 0,
        )
        if not exponent or all(part.isfinite().all() for part in gradients):
            break
        exponent -= 1
    if exponent:
        gradients = tuple(part / 2.0**exponent for part in gradients)
    return dict(zip(parameters, gradients, strict=True)), loss.item()


@dataclass(frozen=True)
class _Autocast:
    """A network whose matrix products are of low precision; its logits are float32 again."""

    network: nn.Module
    dtype: torch.dtype
    device: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with torch.autocast(self.device, dtype=self.dtype):
            output = self.network(*args, **kwargs)
        if isinstance(output, Tensor):
            return output.float()
        output.logits = output.logits.float()
        return output


def smoothed(task: Task, model: nn.Module, batch: Batch, share: float) -> Batch:
    """The batch with soft labels (Szegedy et al. 2016): ``1 - share`` and a uniform ``share``.

    Padding and other positions that are not predicted keep no weight.
    """
    labels = batch.labels
    classes = task.spec.num_classes or model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    soft = one_hot(labels.clamp(min=0), classes) * (1 - share) + share / classes
    return replace(batch, labels=soft * (labels != IGNORED)[..., None])
