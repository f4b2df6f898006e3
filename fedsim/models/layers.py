"""What a layer of somebody's network is, told by its class: linear, a norm, random in training."""

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


def is_norm(module: nn.Module) -> bool:
    """True for LayerNorm, RMSNorm (Zhang and Sennrich 2019) and their variants with a weight."""
    names = {type(module).__name__[-len(kind) :] for kind in ("LayerNorm", "RMSNorm")}
    return bool(names & {"LayerNorm", "RMSNorm"}) and hasattr(module, "weight")


def normalised(module: nn.Module, inputs: Tensor) -> Tensor:
    """The inputs ``(..., width)`` before they are multiplied by the weight."""
    eps = getattr(module, "eps", getattr(module, "variance_epsilon", 0.0))
    kind = F.rms_norm if type(module).__name__.endswith("RMSNorm") else F.layer_norm
    return kind(inputs, inputs.shape[-1:], eps=eps)


def middle_norm(network: nn.Module) -> nn.Module:
    """The last normalisation of a transformer's middle block."""
    blocks = next(part for part in network.modules() if isinstance(part, nn.ModuleList))
    return [part for part in blocks[(len(blocks) - 1) // 2].children() if is_norm(part)][-1]


def has_dropout(network: nn.Module) -> bool:
    """Whether masks change what a layer gets in train mode."""
    return any(isinstance(part, nn.Dropout) and part.p > 0 for part in network.modules())


def has_train_mode(network: nn.Module) -> bool:
    """Whether masks or a batch's own statistics change what the network computes."""
    return has_dropout(network) or any(isinstance(p, _BatchNorm) for p in network.modules())


def is_transposed(module: nn.Module) -> bool:
    """True for GPT-2's linear layer, whose weight is ``(in, out)``, also as peft 0.6 adapts it."""
    weight = vars(module)["_parameters"].get("weight")
    adapted = getattr(module, "fan_in_fan_out", False) and weight is not None and weight.dim() == 2
    # Importing the class would import transformers.
    return type(module).__name__ == "Conv1D" or bool(adapted)
