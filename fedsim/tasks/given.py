"""Tasks of models that a program holds: transformers, and any network of images with its loss."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fedsim.config.named_code import function_of
from fedsim.errors import ConfigError
from fedsim.models.network import ImageNetwork, copied, without_checkpoints
from fedsim.tasks.base import Network, Task, TaskSpec
from fedsim.tasks.given_transformer import is_transformer, transformer_task, unwrapped
from fedsim.tasks.images import ImageClassification
from fedsim.tasks.inputs import InputForm, Range, refuse_codes
from fedsim.tasks.loss_findings import failing, findings, runs, said_of
from fedsim.tasks.targets import (
    TargetForm,
    bypassed,
    check_scalar,
    last_linear,
    mark_unread,
    read_targets,
    unread,
)
from fedsim.types import Batch

Loss: TypeAlias = Callable[[Any, Batch], Tensor]
Model: TypeAlias = nn.Module | str | Callable[[], nn.Module]
"""A network, a hub id or folder of transformers, or a function, also as ``module:function``."""
LOSS = "loss=lambda model, batch: F.cross_entropy(model(batch.inputs), batch.labels)"


@dataclass(frozen=True)
class GivenNetwork(ImageClassification):
    """A network and a loss that its owner hands over.

    Attributes:
        network: copied by ``build``.
        objective: scalar mean loss of (network, batch), whose inputs are as the owner describes
            them; a loss that normalises images first makes guesses come out as images.
        takes: the form of its targets.
        unread: the linear layers on which the objective does not depend, as of an auxiliary head.
        promoted: whether float32 tensors that the loss holds have to be taken for float64.
        doubt: what is unusual of the loss, see ``fedsim.tasks.loss_findings``.
    """

    network: nn.Module = field(repr=False, compare=False)
    objective: Loss = field(repr=False, compare=False)
    takes: TargetForm = field(default_factory=TargetForm)
    unread: tuple[str, ...] = ()
    promoted: bool = False
    doubt: str = ""

    def build(self) -> nn.Module:
        """A copy in float32 on the CPU, in eval mode."""
        network = copied(self.network).cpu().float().eval()
        mark_unread(network, self.unread)
        return network

    def any_labels(self, count: int) -> Tensor:
        """As the form of the targets has them."""
        return self.takes.blank(count)

    def targets_of(self, unknowns: Tensor) -> Tensor:
        """Soft classes, memberships in [0, 1], or the numbers themselves."""
        if self.takes.kind == "classes":
            return unknowns.sigmoid()
        return unknowns if self.takes.kind == "numbers" else super().targets_of(unknowns)

    def loss(self, network: Network, batch: Batch) -> Tensor:
        """The owner's loss."""
        inputs = self.form.given(batch.inputs)
        given = Batch(inputs, self.takes.given(batch.labels, inputs.dtype))
        double = self.promoted and inputs.dtype == torch.float64
        with without_checkpoints(), Promotion() if double else nullcontext():
            return self.objective(network, given)


def task_of(
    model: Model,
    *,
    tokenizer: Any = None,  # noqa: ANN401
    task: str = "",
    loss: Loss | str | None = None,
    image_shape: tuple[int, ...] = (),
    input_shape: tuple[int, ...] = (),
    input_range: Range | None = None,
    max_length: int = 0,
    arrays: dict[str, tuple[int, ...]] | None = None,
    lora_alpha: float = 0.0,
) -> Task:
    """The task of a model as its owner describes it; nothing about it is guessed.

    Args:
        model: a network of torch, of transformers or of peft; the name of a model of transformers;
            or a function that makes a network, also as ``module:function``.
        tokenizer: of a text model: a fast tokenizer, or its hub id or folder.
        task: ``classification``, ``language-modelling`` or ``masked-language-modelling``; empty if
            the class of the model tells.
        loss: of a network of images, a function or its ``module:function``.
        image_shape: of a network of images, ``(channel, height, width)``.
        input_shape: the same of other inputs, ``(column,)`` or ``(channel, time)``.
        input_range: smallest and largest value of an input, or of each channel; [0, 1] if None.
        max_length: longest text in tokens that attacks look for; 0 for 64, or what the model takes.
        arrays: shapes of what crossed the wire by name, for a model given by its name.
        lora_alpha: scale of adapters, for a model given by its name.

    Raises:
        ConfigError: something is missing or does not fit.
    """
    built = _network(model)
    inner = unwrapped(built) if isinstance(built, nn.Module) else built
    if isinstance(inner, str) or is_transformer(inner):
        if loss is not None:
            raise ConfigError(
                "loss: that of a text model is the one of transformers, or is read off the head's "
                "gradient. Leave loss out."
            )
        _refuse_unread(
            "a text model, whose inputs are tokens",
            image_shape=image_shape,
            input_shape=input_shape,
            input_range=input_range,
        )
        return transformer_task(inner, tokenizer, task, max_length, arrays or {}, lora_alpha)
    refuse_codes(inner, image_shape or input_shape)
    if tokenizer is not None:
        raise ConfigError(
            f"tokenizer: {type(inner).__name__} is no text model of transformers. Pass one with a "
            "head, which AutoModelForCausalLM.register makes of yours, or leave tokenizer out."
        )
    _refuse_unread(
        f"{type(inner).__name__}, which is no text model of transformers",
        task=task,
        max_length=max_length,
        lora_alpha=lora_alpha,
    )
    if loss is None and not isinstance(inner, ImageNetwork):
        given = image_shape or input_shape
        shape = "" if given else ", nor the shape of its inputs"
        more = "" if given else f", {_usual_shape(inner)}"
        raise ConfigError(
            f"loss: that of {type(inner).__name__} is not known{shape}. "
            f"Pass {'it' if given else 'both'}, for example {LOSS}{more}. In a shell: "
            f"--loss MODULE:NAME{'' if given else ' --image-shape 3,32,32'}."
        )
    objective = function_of(loss, "loss") if loss is not None else _cross_entropy
    form = InputForm.of(image_shape or input_shape, input_range)
    with without_checkpoints():
        return _network_task(inner, objective, form, _reference(model), _loss_reference(loss))


def _usual_shape(network: nn.Module) -> str:
    """The option that says the shape of inputs, by the first layer of weights."""
    first = next((m for m in network.modules() if isinstance(m, _FIRST)), None)
    if isinstance(first, nn.Linear):
        return f"input_shape=({first.in_features},) of rows, or image_shape=(3, 32, 32)"
    if isinstance(first, nn.Conv1d):
        return f"input_shape=({first.in_channels}, 128)"
    channels = first.in_channels if isinstance(first, nn.Conv2d) else 3
    return f"image_shape=({channels}, 32, 32)"


_FIRST = (nn.Flatten, nn.Linear, nn.Conv1d, nn.Conv2d)


def _refuse_unread(model: str, **given: object) -> None:
    """Refuse what is said of a model that does not read it."""
    for name, value in given.items():
        if value:
            raise ConfigError(f"{name}: {value!r} is not for {model}. Leave {name} out.")


def _network(model: Model) -> nn.Module | str:
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, str) and ":" not in model:
        return model
    network = _called(function_of(model, "model") if isinstance(model, str) else model)
    if isinstance(network, nn.Module):
        return network
    raise ConfigError(
        f"model: got {type(network).__name__}. Pass a torch.nn.Module, the name of a transformers "
        "model, or a function without arguments that makes one."
    )


def _called(model: object) -> object:
    if not callable(model):
        return model
    try:
        return model()
    except Exception as error:  # of another's code
        name = getattr(model, "__qualname__", type(model).__name__)
        raise ConfigError(
            f"model: {name}() fails ({type(error).__name__}: {error}). Pass a function without "
            "arguments that makes the network."
        ) from error


def _reference(model: Model) -> str:
    if isinstance(model, str):
        return model
    if inspect.isclass(model) or inspect.isfunction(model):
        return f"{model.__module__}:{model.__qualname__}"
    return f"{type(model).__module__}:{type(model).__qualname__}"


def _loss_reference(loss: Loss | str | None) -> str:
    """As which a command line can name the loss; empty where it cannot."""
    if isinstance(loss, str):
        return loss
    if inspect.isfunction(loss) and "<" not in loss.__qualname__:
        return f"{loss.__module__}:{loss.__qualname__}"
    return ""


def _network_task(
    network: nn.Module, objective: Loss, form: InputForm, factory: str, loss: str
) -> Task:
    name = type(network).__name__
    if isinstance(network, torch.jit.ScriptModule):
        raise ConfigError(
            f"model: {network.original_name} is compiled by torch.jit, which hides its layers. "
            "Pass the network that was scripted or traced; the names of its tensors are the same."
        )
    trial = copied(network).cpu().float().eval()
    pixels = torch.rand(1, *form.pixels, generator=torch.Generator().manual_seed(0))
    beside = tuple(unread(objective, trial, form.given(pixels)))
    mark_unread(trial, beside)
    layer, width = _outputs(trial, form.given(pixels), form, objective)
    takes = _targets(objective, trial, layer, width, form.given(pixels))
    numbers = takes.kind == "numbers"
    spec = TaskSpec(
        kind="image-classification",
        model=name,
        architecture={},
        num_classes=0 if takes.kind in ("numbers", "none") else takes.size or 1,
        input_shape=form.pixels,
        factory=factory,
        loss=loss,
        target=takes.kind,
        targets=takes.size if numbers else 0,
        owner_shape=() if form.shape == form.pixels else form.shape,
        low=form.low,
        high=form.high,
    )
    task = GivenNetwork(spec, network, objective, takes, beside)
    _check_loss(task, trial, Batch(pixels, takes.blank(1)))
    doubt = _unusual(task, trial, width, form)
    return replace(task, promoted=_mixes(task, trial.double(), pixels.double()), doubt=doubt)


def _unusual(task: GivenNetwork, network: nn.Module, width: int, form: InputForm) -> str:
    def given(batch: Batch) -> Batch:
        inputs = form.given(batch.inputs)
        return Batch(inputs, task.takes.given(batch.labels, inputs.dtype))

    return findings(task.objective, network, task.takes, width, given, form.pixels)


def _outputs(
    network: nn.Module, inputs: Tensor, form: InputForm, objective: Loss
) -> tuple[str | None, int]:
    """The layer whose outputs ``(batch, output)`` the loss is about, and how many these are."""
    head, widths = last_linear(network), []
    hook = network.get_submodule(head or "").register_forward_hook(
        lambda module, args, output: widths.append(tuple(getattr(output, "shape", ())))
    )
    try:
        with torch.no_grad():
            returned = network(inputs)
    except Exception as error:  # the network is foreign code
        returned = None
        if not runs(objective, network, inputs):  # it may take more than an input
            raise ConfigError(
                f"{'image' if len(form.shape) == 3 else 'input'}_shape: {type(network).__name__} "
                f"does not take inputs of {form.shape} ({said_of(error)}), nor does the loss call "
                "it with such. Pass the shape that it takes."
            ) from None
    finally:
        hook.remove()
    plain = isinstance(returned, Tensor) and returned.dim() == 2
    if (
        head is not None
        and widths
        and len(widths[-1]) == 2
        and not (plain and bypassed(network, head, inputs))
    ):
        return head, widths[-1][1]
    if plain:
        return "", returned.shape[1]
    shapes = [tuple(value.shape) for value in _tensors(returned)]
    flat = [shape for shape in shapes if len(shape) == 2]
    if flat or not shapes:
        return None, flat[0][1] if flat else 0
    raise ConfigError(
        f"model: {type(network).__name__} makes {shapes[0]} of an input. fedsim knows one class an "
        f"image; targets of shape {shapes[0][2:] or shapes[0][1:]} are not supported. Pass a "
        "network that classifies whole inputs."
    )


def _tensors(returned: Any) -> list[Tensor]:  # noqa: ANN401
    """The tensors that a network returned, in tuples, dictionaries and classes of transformers."""
    if isinstance(returned, Tensor):
        return [returned]
    if isinstance(returned, Mapping):
        return [value for part in returned.values() for value in _tensors(part)]
    if isinstance(returned, Sequence):
        return [value for part in returned for value in _tensors(part)]
    return (
        [value for part in vars(returned).values() for value in _tensors(part)] if returned else []
    )


def _targets(
    objective: Loss, network: nn.Module, layer: str | None, width: int, inputs: Tensor
) -> TargetForm:
    if layer is None:
        return TargetForm(size=width)
    try:
        return read_targets(objective, network, layer, width, inputs)
    except ConfigError:
        raise
    except Exception as error:  # the loss is foreign code
        raise failing(error, objective, network, inputs) from None


def _check_loss(task: GivenNetwork, network: nn.Module, batch: Batch) -> None:
    try:
        value = task.loss(network, batch)
    except Exception as error:  # the loss is foreign code
        raise failing(error, task.objective, network, batch.inputs) from None
    check_scalar(value)


def _mixes(task: GivenNetwork, network: nn.Module, pixels: Tensor) -> bool:
    """Whether the loss holds float32 tensors, such as weights of classes, that float64 minds."""
    try:
        task.loss(network, Batch(pixels, task.takes.blank(1))).backward()
    except Exception:  # the loss is foreign code, and has run in float32
        return True
    return False


def _cross_entropy(network: Any, batch: Batch) -> Tensor:  # noqa: ANN401
    return nn.functional.cross_entropy(network(batch.inputs), batch.labels)


class Promotion(TorchFunctionMode):
    """Take float32 tensors for float64 wherever the two meet, as a loss's own weights do."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """The function of arguments that agree."""
        del types
        both = (tuple(args), dict(kwargs or {}))
        kinds = {
            value.dtype
            for value in tree_leaves(both)
            if isinstance(value, Tensor) and value.dtype.is_floating_point
        }
        if len(kinds) > 1 and torch.float64 in kinds:
            both = tree_map_only(
                Tensor, lambda v: v.double() if v.dtype == torch.float32 else v, both
            )
        return func(*both[0], **both[1])
