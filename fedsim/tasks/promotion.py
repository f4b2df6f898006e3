"""Float32 tensors that meet float64 ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only


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
