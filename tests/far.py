"""A device that is not there: tensors that compute on the CPU and say that they are on ``far:0``.

Refused is what CUDA refuses: tensors of two devices in one operation (but for numbers, and indices
on the CPU), random numbers from a generator of another device, and products of integers. Neither
precision nor memory nor the order of sums is that of a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_iter, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("far")
torch.get_device_module("far").get_amp_supported_dtype = list  # torch's checkpoints ask for it
FAR = torch.device("far:0")
_aten = torch.ops.aten
_MOVES = {_aten.copy_.default, _aten._to_copy.default}
_INDEXED = {
    _aten.index.Tensor,
    _aten._unsafe_index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
}
_PRODUCTS = {_aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.mv.default}
_Generator = torch.Generator


_WAITING = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.equal.default,
    _aten._unique2.default,
    _aten.unique_dim.default,
}


class Far(torch.Tensor):
    """A tensor on ``far``; ``held`` has its values.

    ``waits`` counts what makes the CPU of a CUDA device wait: values that it reads, and shapes that
    depend on values.
    """

    held: torch.Tensor
    waits = 0
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __new__(cls, inner: torch.Tensor) -> Far:
        made: Far = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=FAR,
        )
        made.held = inner
        return made

    def tolist(self) -> Any:
        Far.waits += 1
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _MOVES:
            _check(func, args, kwargs)
        Far.waits += _waits(func, args, kwargs)
        asked = kwargs.get("device")
        found = func(*tree_map_only(Far, _inner, args), **{k: _near(v) for k, v in kwargs.items()})
        if func is _aten.copy_.default:
            return args[0]
        leaves = asked is not None and torch.device(asked).type != "far"
        if leaves or not isinstance(found, torch.Tensor | tuple | list):
            return found
        return return_and_correct_aliasing(
            func, args, kwargs, tree_map_only(torch.Tensor, Far, found)
        )


def _waits(func: Any, args: Any, kwargs: Any) -> bool:
    if func in _INDEXED:
        masks = [one for one in args[1] if isinstance(one, Far) and one.dtype is torch.bool]
        return bool(masks)
    if func is _aten._to_copy.default:
        return torch.device(kwargs.get("device") or FAR).type == "cpu"
    if func is _aten.copy_.default:
        return isinstance(args[1], Far) and not isinstance(args[0], Far)
    return func in _WAITING


def _inner(tensor: Far) -> torch.Tensor:
    return tensor.held


def _near(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "far":
        return torch.device("cpu")
    return tree_map_only(Far, _inner, value)


def _check(func: Any, args: Any, kwargs: Any) -> None:
    places = [*enumerate(args), *kwargs.items()]
    given = [(place, one) for place, value in places for one in tree_iter(value)]
    tensors = [(place, one) for place, one in given if isinstance(one, torch.Tensor)]
    indices = [func in _INDEXED and place == 1 for place, _ in tensors]
    away = [isinstance(one, Far) for _, one in tensors]
    there = isinstance(args[0], Far) if func in _INDEXED else True
    near = [
        not (far or index or one.dim() == 0)
        for far, index, (_, one) in zip(away, indices, tensors, strict=True)
    ]
    if any(near) or (not there and any(away)):
        raise RuntimeError(f"Expected all tensors to be on the same device: {func}")
    if func in _PRODUCTS and not tensors[0][1].is_floating_point():
        raise RuntimeError(f"not implemented for integers: {func}")


class FarGenerator(torch.Generator):
    """A generator that says it is on ``far``."""

    device = FAR


class _Made(type):
    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        return FarGenerator() if torch.device(device).type == "far" else _Generator(device)

    def __instancecheck__(cls, other: object) -> bool:
        return isinstance(other, _Generator)


class Generators(metaclass=_Made):
    """Stands for ``torch.Generator`` in a test."""


class Watch(TorchFunctionMode):
    """Sees what dispatch does not: generators, and what C++ makes of Python's lists and numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (rng := kwargs.get("generator")) is not None:
            first = args[0] if args and isinstance(args[0], torch.Tensor) else None
            place = kwargs.get("device", "cpu" if first is None else first.device)
            if (torch.device(place).type == "far") != isinstance(rng, FarGenerator):
                raise RuntimeError(f"Expected a generator of the device {place}: {func}")
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == "far":
            return func(*args, **{**kwargs, "device": "cpu"}).to(FAR)
        if func is torch.Tensor.new_tensor and isinstance(args[0], Far):
            return func(args[0].held, *args[1:], **kwargs).to(FAR)
        indexing = func in {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
        if indexing and isinstance(args[0], Far):
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            parts = tuple(torch.tensor(p).long() if isinstance(p, list) else p for p in parts)
            return func(args[0], parts, *args[2:])
        return func(*args, **kwargs)


_library = torch.library.Library("aten", "IMPL")


def _factory(op: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Far:
        return Far(op(*args, **{**kwargs, "device": torch.device("cpu"), "pin_memory": None}))

    return make


for _name in (
    *("empty.memory_format", "empty_strided", "full", "zeros", "ones", "scalar_tensor"),
    *("arange", "arange.start", "arange.start_step", "linspace", "eye", "eye.m"),
    *("rand", "rand.generator", "randn", "randn.generator", "randperm", "randperm.generator"),
    *("randint", "randint.low", "randint.generator", "randint.low_generator"),
    *("tril_indices", "triu_indices"),
):
    _base, _, _overload = _name.partition(".")
    _op = getattr(getattr(_aten, _base), _overload or "default")
    _library.impl(_name, _factory(_op), "PrivateUse1")
