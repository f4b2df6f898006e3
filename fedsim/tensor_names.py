"""Tensors of another application under the names that a network has for them."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsim.compressed import expanded
from fedsim.errors import ConfigError
from fedsim.types import Tensors

Given: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""Arrays or tensors by name, or in an order."""

_WRAPPER = re.compile(r"^(module\.|_module\.|_forward_module\.|_orig_mod\.|base_model\.model\.)+")
"""What DistributedDataParallel, Opacus, Fabric, torch.compile and peft put before every name."""
_INNER = re.compile(r"(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")
"""What sharding, checkpointing and compiling put before the names of single layers."""
_ADAPTER = re.compile(r"\.(lora_[AB])\.(?:\w+\.)?weight$")
_SAVED = re.compile(r"\.modules_to_save\.\w+\.")
_ORIGINAL = ".original_module."


@dataclass(frozen=True, slots=True)
class Named:
    """Tensors under a network's names.

    Attributes:
        tensors: in the network's order.
        how: how they were matched, one clause.
        absent: the network's tensors that were not given.
    """

    tensors: Tensors
    how: str
    absent: tuple[str, ...]


def own_tensors(network: nn.Module) -> Tensors:
    """The network's parameters, tied ones once, then its persistent buffers; nothing is copied."""
    persistent = network.state_dict()
    buffers = {name: value for name, value in network.named_buffers() if name in persistent}
    return dict(network.named_parameters()) | buffers


def weights_of(network: nn.Module) -> Tensors:
    """The network's ``state_dict``; weights that bitsandbytes quantised, as it computes with them.

    Source: QLoRA (Dettmers et al. 2023).
    """
    weights = network.state_dict()
    for name, layer in network.named_modules():
        weight = getattr(layer, "weight", None)
        if (plain := _dequantised(weight)) is not None:
            extra = (f"{name}.weight.", f"{name}.SCB", f"{name}.weight_format")
            weights = {key: value for key, value in weights.items() if not key.startswith(extra)}
            weights[f"{name}.weight"] = plain.float()
    return weights


def _dequantised(weight: Any) -> Tensor | None:  # noqa: ANN401
    kind = type(weight).__name__
    if kind not in ("Params4bit", "Int8Params"):
        return None
    functional: Any = importlib.import_module("bitsandbytes.functional")
    if kind == "Params4bit":
        return functional.dequantize_4bit(weight.data, weight.quant_state)  # type: ignore[no-any-return]
    return functional.int8_vectorwise_dequant(weight.data, weight.SCB)  # type: ignore[no-any-return]


def named(given: Given, network: nn.Module, what: str, *, partial: bool = False) -> Named:
    """Match tensors by name, where that fails by shape and order.

    Prefixes of DistributedDataParallel, torch.compile and peft are dropped, a tied head counts as
    the parameter that it is tied to, and buffers that ``state_dict`` leaves out are ignored.

    Args:
        given: arrays or tensors, by name or in the order of the network.
        network: whose names they get.
        what: what they are, for messages.
        partial: arrays without names may be the network's first alone, or have others behind them.

    Raises:
        ConfigError: they do not fit the network.
    """
    expected, places = own_tensors(network), _Places(network)
    every = _split(_tensors(_without_none(given, network), what), network, expected, places)
    tensors = _with_counters(every, expected, places)
    targets = {name: places.target(name) for name in tensors}
    unknown = [name for name, target in targets.items() if target is None]
    if unknown:
        by_order = _by_order(list(tensors.values()), network, expected, places, partial)
        weights = {f"{name}.weight": value for name, value in tensors.items()}
        if by_order is None and all(
            name in expected and expected[name].shape == value.shape
            for name, value in weights.items()
        ):  # scores of layers, under the layers' names
            return named(weights, network, what, partial=partial)
        dense, parts = from_parts(tensors, network) if by_order is None else ({}, "")
        if parts and what not in ("before", "after"):
            return Named(dense, f"{len(dense)} tensors of {parts}", ())
        if parts:
            raise ConfigError(
                f"{what}: the arrays are {parts}, so they are no weights. Pass what they add "
                "up to as gradients=."
            )
        if by_order is None and len(unknown) < len(tensors):
            raise ConfigError(
                f"{what}: the model has no tensor {unknown[0]!r}. The nearest are "
                f"{', '.join(difflib.get_close_matches(unknown[0], expected, n=3, cutoff=0.0))}. "
                "Pass the model that the clients train."
            )
        if by_order is None:
            raise ConfigError(f"{what}: {_difference(tensors, expected, places)}")
        values, how = by_order
    else:
        values, how = _by_name(tensors, targets, expected, what)
    ordered = {name: values[name] for name in expected if name in values}
    return Named(ordered, how, tuple(name for name in expected if name not in ordered))


def lacks(matched: Named, network: nn.Module) -> tuple[str, ...]:
    """The absent tensors that matter: counters of batches and the like do not."""
    expected = own_tensors(network)
    return tuple(name for name in matched.absent if expected[name].is_floating_point())


def _without_none(given: Given, network: nn.Module) -> Given:
    """Gradients in the order of the parameters by name, where some have none."""
    if not isinstance(given, Sequence) or not any(value is None for value in given):
        return given
    parameters = network.named_parameters()
    names = [(name, value.requires_grad) for name, value in parameters]
    for listed in ([name for name, _ in names], [name for name, trained in names if trained]):
        if len(listed) == len(given):
            return dict(zip(listed, given, strict=True))
    return given


def _tensors(given: Given, what: str) -> Tensors:
    if isinstance(given, Mapping):
        pairs = [(str(name), value) for name, value in given.items() if value is not None]
    elif isinstance(given, Sequence) and not isinstance(given, str):
        pairs = [(str(number), value) for number, value in enumerate(given)]
    elif getattr(given, "ndim", 0) == 1:  # of all tensors, one behind the other
        pairs = [("0", given)]
    else:
        raise ConfigError(
            f"{what}: got {type(given).__name__}. Pass a dictionary of tensors by name, or a list "
            "in the order of the model."
        )
    if not pairs:
        raise ConfigError(f"{what}: there is no tensor. Pass what the client sent.")
    tensors = {}
    for name, value in pairs:
        try:
            tensor = torch.as_tensor(value).detach().cpu()
            tensor = tensor.dequantize() if tensor.is_quantized else tensor
            if tensor.is_complex():
                raise ConfigError(f"{what}: {name!r} holds complex numbers. Pass real tensors.")
            if tensor.is_floating_point() and tensor.itemsize == 1:
                tensor = tensor.float()  # arithmetic knows no such format
            # Gradients of an embedding with sparse=True; a pruned weight may be of another layout.
            tensors[name] = tensor if tensor.layout == torch.strided else tensor.to_dense()
            if tensor.is_nested:
                raise TypeError
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(
                f"{what}: {name!r} is {type(value).__name__}, not a tensor. Leave out parameters "
                "without a gradient, or give them zeros."
            ) from None
        if tensors[name].is_floating_point() and not bool(tensors[name].isfinite().all()):
            count = int((~tensors[name].isfinite()).sum())
            raise ConfigError(
                f"{what}: {name!r} holds {count} values that are NaN or infinite. "
                "Capture a step whose loss is finite."
            )
    return tensors


def _with_counters(tensors: Tensors, expected: Tensors, places: _Places) -> Tensors:
    """Counters of batches without axes, as the network has them; without those that came empty.

    ``torch.Tensor`` of an array without axes is empty, and numpy's ``atleast_1d`` has one value.
    """
    listed = list(places.listed.values())
    by_name = {name: places.target(name) for name in tensors}
    if len(listed) == len(tensors) and None in by_name.values():
        by_name = dict(zip(tensors, listed, strict=True))
    counters = {
        name: target
        for name, target in by_name.items()
        if target and not expected[target].dim() and not expected[target].is_floating_point()
    }
    single = {
        k: v.reshape(()) if k in counters and len(v.flatten()) == 1 else v
        for k, v in tensors.items()
    }
    if all(len(single[name].flatten()) for name in counters):
        return single
    return {by_name[k] or k: v for k, v in single.items() if k not in counters}


class _Places:
    """Where the names of others lead in a network."""

    def __init__(self, network: nn.Module) -> None:
        tensors = own_tensors(network)
        first = {id(value): name for name, value in tensors.items()}
        every = network.state_dict(keep_vars=True)
        self.listed = {name: first.get(id(value), name) for name, value in every.items()}
        self.hidden = {name for name, _ in network.named_buffers()} - tensors.keys()

    def target(self, name: str) -> str | None:
        """The network's name, empty for what is ignored, None if there is no such tensor."""
        if _ORIGINAL in name:
            return ""
        for form in _forms(name):
            if form in self.listed:
                return self.listed[form]
            if form in self.hidden:
                return ""
        return None


def _forms(name: str) -> Iterator[str]:
    stripped = _INNER.sub("", _WRAPPER.sub("", name))
    for form in dict.fromkeys((name, stripped)):
        form = _SAVED.sub(".", form)
        yield form
        yield _ADAPTER.sub(r".\1.default.weight", form)
        head, _, last = form.rpartition(".")
        yield f"{head}.base_layer.{last}"
        yield form.replace(".base_layer.", ".")  # as peft before 0.7 has it


def _by_name(
    tensors: Tensors, targets: Mapping[str, str | None], expected: Tensors, what: str
) -> tuple[Tensors, str]:
    matched: Tensors = {}
    tied = []
    for name, value in tensors.items():
        target = targets[name]
        if not target:
            continue
        if value.shape != expected[target].shape:
            value = _unpacked(value, expected[target])
        if value.shape != expected[target].shape:
            raise ConfigError(
                f"{what}: {name!r} has the shape {tuple(value.shape)}, and the model's "
                f"{tuple(expected[target].shape)}{_reshaped(value, expected[target])}. Pass the "
                "model that the clients train."
            )
        if target not in matched:
            matched[target] = value
        elif torch.equal(matched[target], value):
            tied.append(f"{name} is tied to {target}")
        else:
            raise ConfigError(
                f"{what}: {name!r} differs from {target!r}, to which this model ties it. "
                "Build the model with tie_word_embeddings = False."
            )
    renamed = sum(target not in ("", name) for name, target in targets.items()) - len(tied)
    notes = [f"{len(matched)} tensors by name"]
    notes += [f"{renamed} of them after a change of prefix"] if renamed else []
    return matched, ", ".join(notes + tied)


def _by_order(
    values: Sequence[Tensor], network: nn.Module, expected: Tensors, places: _Places, partial: bool
) -> tuple[Tensors, str] | None:
    orders = _orders(network, places)
    shapes = [value.shape for value in values]
    for source, names in orders.items():
        if [expected[name].shape for name in names] == shapes:
            how = f"{len(values)} tensors by shape and order, as {source} lists them"
            return dict(zip(names, values, strict=True)), how
    for source, names in orders.items() if partial else ():
        count = min(len(names), len(shapes))
        if count > 1 and [expected[name].shape for name in names[:count]] == shapes[:count]:
            how = f"the first {count} of {len(values)} tensors by shape and order, as {source}"
            return dict(zip(names[:count], values, strict=False)), f"{how} lists {len(names)}"
    return None


def _orders(network: nn.Module, places: _Places) -> dict[str, list[str]]:
    """The orders in which tensors without names may stand."""
    listed = list(places.listed.values())
    trained = [name for name, value in network.named_parameters() if value.requires_grad]
    return {
        "state_dict()": listed,
        "parameters()": [name for name, _ in network.named_parameters()],
        "the trained parameters": trained,
        "state_dict() without batch normalisation": _without_statistics(listed, network),
    }


def _split(tensors: Tensors, network: nn.Module, expected: Tensors, places: _Places) -> Tensors:
    """The tensors in a single vector, as ``torch.nn.utils.parameters_to_vector`` makes one."""
    vector = next(iter(tensors.values()))
    if len(tensors) > 1 or vector.dim() != 1 or next(iter(tensors)) in expected:
        return tensors
    for names in _orders(network, places).values():
        sizes = [expected[name].numel() for name in names]
        if sum(sizes) == len(vector):
            parts = zip(names, vector.split(sizes), strict=True)
            return {
                name: part.reshape(expected[name].shape).to(_dtype(part, expected[name]))
                for name, part in parts
            }
    return tensors


def _dtype(part: Tensor, whole: Tensor) -> torch.dtype:
    """That of the vector, but for counters."""
    return part.dtype if whole.is_floating_point() else whole.dtype


def from_parts(tensors: Tensors, network: nn.Module) -> tuple[Tensors, str]:
    """Tensors that came as pairs or factors, see ``fedsim.compressed``, in the network's order."""
    expected, orders = own_tensors(network), _orders(network, _Places(network)).values()
    dense, parts = expanded(list(tensors.values()), orders, expected)
    return {name: dense[name] for name in expected if name in dense}, parts


def _without_statistics(names: Sequence[str], network: nn.Module) -> list[str]:
    """The tensors that clients share where each keeps its own normalisation (FedBN)."""
    layers = {name for name, layer in network.named_modules() if isinstance(layer, _BatchNorm)}
    return [name for name in names if name.rpartition(".")[0] not in layers]


def _difference(tensors: Tensors, expected: Tensors, places: _Places) -> str:
    """The first place in which the arrays differ from ``state_dict``."""
    names = list(places.listed.values())
    for number, (value, name) in enumerate(zip(tensors.values(), names, strict=False)):
        if value.shape != expected[name].shape:
            return (
                f"tensor {number} has the shape {tuple(value.shape)}, where the model has {name!r} "
                f"of {tuple(expected[name].shape)}{_reshaped(value, expected[name])}. Pass the "
                "model that the clients train, and the arrays in its order."
            )
    return (
        f"{len(tensors)} tensors came, and the model has {len(names)}. Pass all of them, or a "
        "dictionary by name."
    )


def _unpacked(value: Tensor, whole: Tensor) -> Tensor:
    """A vector of as many entries as a sparse weight has, at their places; others as they are."""
    active = whole != 0
    if value.dim() != 1 or whole.dim() < 2 or len(value) != int(active.sum()) or active.all():
        return value
    return torch.zeros_like(whole, dtype=value.dtype).masked_scatter(active, value)


def _reshaped(value: Tensor, whole: Tensor) -> str:
    """What a tensor of another shape may be: transposed, packed, or a slice as HeteroFL has it."""
    if value.dim() == 1 < whole.dim() and len(value) < whole.numel():
        return (
            f", so that it may be {len(value)} of its {whole.numel()} entries, packed by a mask: "
            "unpack it, with zeros elsewhere, or load the sparse weights into the model"
        )
    if value.dim() > 1 and tuple(value.shape) == tuple(whole.shape)[::-1]:
        return ", so that it may be transposed, as Keras and JAX store it: turn it round"
    smaller = all(a <= b for a, b in zip(value.shape, whole.shape, strict=False))
    if value.dim() != whole.dim() or not value.dim() or not smaller:
        return ""
    return ", so that this client may have been sent a narrower one (HeteroFL): name it by --model"
