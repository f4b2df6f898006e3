"""The client's gradient as a differentiable function of a guessed batch."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.func import grad, replace_all_batch_norm_modules_

from attacks.observed.declared import unreplayed
from fedsim.config.federation import FederationConfig
from fedsim.errors import CannotAttack
from fedsim.knowledge import MULTIPLES
from fedsim.models.precode import VariationalBottleneck
from fedsim.store.capture import Observation
from fedsim.tasks.base import Task, twice_differentiable
from fedsim.types import Batch, Tensors

_APPROXIMATED = frozenset(
    {
        *("precision", "accumulation", "label_smoothing"),
        *("max_grad_norm", "momentum", "weight_decay", "proximal_mu"),
        *("schedule", "schedule_over", "warmup_steps"),
    }
)
"""Options of local training that one gradient stands for: the first three change it little, the
others scale and bend the steps along it. No other option may be passed over."""

_ONCE = once_differentiable(lambda *args: args).__code__


@dataclass(frozen=True)
class Replay:
    """The broadcast model, and the parameters whose gradient the attacker compares.

    Attributes:
        network: in eval mode. Where the client trained with batch statistics its normalisation
            layers use those of the guess; the client's dropout mask is unknown, so dropout is off.
        parameters: those the client sent, in the model's order; frozen ones are absent.
    """

    task: Task
    network: nn.Module
    parameters: Tensors

    def gradient(self, batch: Batch, *, graph: bool = True) -> Tensors:
        """The gradient by autograd, with its graph: the quickest way for a single batch."""
        with torch.enable_grad(), twice_differentiable(self.network):
            loss = self.task.loss(self.network, batch)
        if graph:
            check_twice_differentiable(loss)
        gradients = torch.autograd.grad(
            loss,
            list(self.parameters.values()),
            create_graph=graph,
            allow_unused=True,
            materialize_grads=True,
        )
        return dict(zip(self.parameters, gradients, strict=True))

    def differentiable(self, batch: Batch) -> Tensors:
        """``gradient``, with a graph of inputs that ask for it; in ``torch.func`` the pure one."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return self.pure_gradient(batch)
        return self.gradient(batch, graph=torch.is_grad_enabled() and batch.inputs.requires_grad)

    def pure_gradient(self, batch: Batch) -> Tensors:
        """The gradient as a pure function, for ``torch.func.vmap`` over batches."""

        def loss(parameters: Tensors) -> torch.Tensor:
            return self.task.functional_loss(self.network, parameters, batch)

        gradient: Tensors = grad(loss)({k: v.detach() for k, v in self.parameters.items()})
        return gradient


def replay(
    observation: Observation, task: Task, device: torch.device, dtype: torch.dtype = torch.float32
) -> Replay:
    """The model as the client received it.

    Raises:
        CannotAttack: the client sent no parameter, or trained with an option, named in the error,
            that a gradient does not stand for.
    """
    check_options(observation)
    network = task.model(observation.sent, device=device).to(dtype)
    if observation.knowledge.train_mode:
        replace_all_batch_norm_modules_(network)
    read_draws(network, observation)
    parameters: Tensors = {k: p for k, p in network.named_parameters() if k in observation.received}
    if not parameters:
        raise CannotAttack(
            "the client sent no parameter, hence no gradient to match",
            "Freeze fewer layers.",
        )
    return Replay(task, network, parameters)


def check_twice_differentiable(loss: torch.Tensor) -> None:
    """Refuse an operation that is marked as differentiable once.

    A slope asked of some inputs alone, as by a search, would lack its term without an error.

    Raises:
        CannotAttack: names the operation.
    """
    nodes, seen = [loss.grad_fn], set[object]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        operation = getattr(node, "_forward_cls", None)
        if operation is not None and operation.backward.__code__ is _ONCE:
            raise CannotAttack(
                f"a layer has no second derivative ({operation.__name__} is once_differentiable)",
                "Give its autograd.Function a backward of differentiable operations, or attack the "
                "same network without it.",
            )
        nodes += [before for before, _ in node.next_functions]


def read_draws(network: nn.Module, observation: Observation) -> None:
    """Set the draws of variational bottlenecks to those behind the update; to 0 if not told."""
    single = observation.knowledge.num_examples == 1
    update = observation.update() if single else {}
    for name, part in network.named_modules():
        if isinstance(part, VariationalBottleneck):
            tensors = {
                k.removeprefix(f"{name}."): v for k, v in update.items() if k.startswith(name)
            }
            draw = part.read({k: v.to(part.mean.weight) for k, v in tensors.items()})
            part.draw = torch.zeros_like(part.mean.bias) if draw is None else draw


def check_options(observation: Observation) -> None:
    """Refuse a client whose local training has an option that one gradient does not stand for.

    Raises:
        CannotAttack: names the option.
    """
    defaults = FederationConfig.model_fields
    strange = {
        name: value
        for name, value in (observation.knowledge.training or {}).items()
        if name not in _APPROXIMATED and (name not in defaults or value != defaults[name].default)
    }
    if strange:
        raise unreplayed(strange)


def is_multiple(observation: Observation) -> bool:
    """Whether the update is a gradient, or a step of an optimiser that sends a multiple of one."""
    return observation.kind == "gradient" or observation.knowledge.optimizer in MULTIPLES


def observed_gradient(observation: Observation, otherwise: str = "") -> Tensors:
    """The mean gradient in float64 that the update amounts to.

    Several local steps count as one step of their summed length. Exact for a single step of plain
    or first-step momentum SGD. ``otherwise`` says what else helps where the length is not known.

    Raises:
        CannotAttack: the step size is not known, or the optimiser hides the scale.
    """
    update = observation.update()
    if observation.kind == "gradient":
        return update
    knowledge = observation.knowledge
    if missing := knowledge.missing(frozenset({"learning_rate", "local_steps"})):
        raise CannotAttack(
            f"the scale of a FedAvg update needs {' and '.join(missing)}, which the server does "
            "not know",
            otherwise,
            missing,
        )
    if not is_multiple(observation):
        raise CannotAttack(
            f"a FedAvg update by {knowledge.optimizer!r} is no multiple of a gradient",
            "Use optimizer = 'sgd', or FedSGD.",
        )
    return {name: value / step_length(observation) for name, value in update.items()}


def gradient_or_multiple(observation: Observation) -> tuple[Tensors, bool]:
    """The gradient, and whether its scale is known: else it is the update as it was received.

    Raises:
        CannotAttack: the optimiser sends no multiple of a gradient.
    """
    knowledge = observation.knowledge
    unknown = knowledge.missing(frozenset({"learning_rate", "local_steps"}))
    if observation.kind != "gradient" and unknown and knowledge.optimizer in MULTIPLES:
        return observation.update(), False
    return observed_gradient(observation), True


def step_length(observation: Observation) -> float:
    """What ``observed_gradient`` divides the update by; 1 under FedSGD.

    Step t of momentum m is as long as ``1 + m + ... + m^(t - 1)`` plain ones along one gradient.
    """
    if observation.kind == "gradient":
        return 1.0
    knowledge = observation.knowledge
    assert knowledge.learning_rate is not None
    assert knowledge.local_steps is not None
    usual = FederationConfig.model_fields["momentum"].default
    momentum = (knowledge.training or {}).get("momentum", usual)
    momentum = momentum if knowledge.optimizer == "momentum" else 0.0
    steps = range(1, knowledge.local_steps + 1)
    plain = sum((1 - momentum**step) / (1 - momentum) for step in steps)
    return float(knowledge.learning_rate * plain)
