"""Forward passes that keep their activations, so that derivatives can be taken of derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch.utils import checkpoint

from fedsim.process import exclusive

_NEWER = (
    "_checkpoint_without_reentrant_generator",
    "_checkpoint_without_reentrant_generator_impl",
)
"""What the newer form calls, up to torch 2.13 and from 2.14 on."""


@exclusive
def without_checkpoints() -> Iterator[None]:
    """Let ``torch.utils.checkpoint`` keep activations, under whatever name a network imported it.

    The hooks of its newer form fail in ``torch.func``, and its older one in ``autograd.grad``.
    """
    replaced: dict[str, Any] = {"CheckpointFunction": _Kept}
    for name in filter(partial(hasattr, checkpoint), _NEWER):
        replaced[name] = lambda *args, **options: iter([None])
    former = {name: getattr(checkpoint, name) for name in replaced}
    try:
        for name, value in replaced.items():
            setattr(checkpoint, name, value)
        yield
    finally:
        for name, value in former.items():
            setattr(checkpoint, name, value)


class _Kept:
    """In place of the autograd function of the older form."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:  # noqa: ANN401
        return function(*args)
