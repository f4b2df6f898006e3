"""Whether the network that a configuration makes is the one that a program holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedsim.errors import ConfigError
from fedsim.models.network import copied
from fedsim.tasks.base import load_state
from fedsim.tasks.text import TextTask
from fedsim.tensor_names import lacks, named, weights_of

_PLACES = 8
"""Tokens of the text that both are shown."""
_APART = 1e-3
"""Largest difference of outputs, in parts of the largest output.

Fused attention differs from eager attention by 1e-6, networks with the weights of another precision
by nothing, as both are computed in float32. An epsilon of .01 for 1e-5 makes .004 to .1. Half of it
finds the same, twice of it as well.
"""


def check_rebuilt(task: TextTask, network: nn.Module) -> None:
    """Refuse a network that was changed after its configuration made it, such as an activation.

    Attacks rebuild the network by its configuration, and explain no update of another one.

    Args:
        task: of the network.
        network: a model of transformers; it is copied.

    Raises:
        ConfigError: tensors or outputs differ.
    """
    if getattr(network.config, "quantization_config", None) is not None:
        return  # quantised weights are computed with plainly, see ``weights_of``
    name = type(network).__name__
    rebuilt = task.blank()
    weights = named(weights_of(network), rebuilt, "model")
    if lacking := lacks(weights, rebuilt):
        raise ConfigError(
            f"model: {name} has no tensor {lacking[0]!r}, which its configuration makes. Set "
            "model.config to what the network is, such as num_hidden_layers."
        )
    load_state(rebuilt, weights.tensors)
    ids = torch.randint(
        task.spec.architecture["vocab_size"],
        (1, min(_PLACES, task.max_length)),
        generator=torch.Generator().manual_seed(0),
    )
    expected = _outputs(rebuilt, ids)
    actual = _outputs(copied(network).cpu().float().eval(), ids)
    if _apart(expected[""], actual.get("", torch.empty(0))) <= _APART:
        return
    changed = (
        key for key, value in actual.items() if _apart(expected.get(key, value), value) > _APART
    )
    place = next(changed, "")
    raise ConfigError(
        f"model: {name} computes something else than its configuration makes, first in "
        f"{place or 'its own forward'!r}, and attacks rebuild it by the latter. Say it in "
        "model.config (an activation, an epsilon, a scale); what no setting says is not supported."
    )


def _outputs(network: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """What each part returns first, by the name of the part; the network's own has none."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:  # noqa: ANN401
        def hook(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ANN401
            del module, args
            for value in tree_leaves(dict(output) if isinstance(output, Mapping) else output):
                if isinstance(value, Tensor):
                    seen.setdefault(name, value.detach())

        return hook

    hooks = [part.register_forward_hook(keep(name)) for name, part in network.named_modules()]
    try:
        with torch.no_grad():
            network(input_ids=ids, attention_mask=torch.ones_like(ids))
    except Exception as error:  # forward may be foreign code
        raise ConfigError(
            f"model: {type(network).__name__} does not take input_ids and attention_mask alone "
            f"({type(error).__name__}: {error}). Pass a model as transformers makes it."
        ) from None
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _apart(expected: Tensor, actual: Tensor) -> float:
    """Largest difference in parts of the largest value; of other shapes, everything."""
    if expected.shape != actual.shape:
        return float("inf")
    return float((expected - actual).abs().max() / actual.abs().max().clamp(min=1e-30))
