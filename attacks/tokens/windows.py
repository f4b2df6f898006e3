"""Windows of attention: the tokens that each layer of a causal network lets a token see."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attacks.observed.calls import inputs_of

_FEWEST = 64
"""Tokens of the first line shown; the next is twice as long. Each costs one pass of the network,
so that 32 and 128 differ by one pass. Neither changes a guess."""


class Windows:
    """Which tokens those of a line see, where a layer shows them fewer than all before.

    Mistral, Phi-3, Gemma 2 and their kin let some layers, or all, attend to the last few tokens
    alone. A mask that is handed to such a network in place of its own replaces its windows, too.
    """

    def __init__(self, network: nn.Module, last: nn.Module) -> None:
        """Of a network of transformers with eager attention, which hands masks to its blocks.

        Args:
            network: as it is run.
            last: layer whose inputs are read; what comes behind it is not asked.
        """
        self._network, self._last = network, last
        config = getattr(network, "config", None)
        self._most = getattr(config, "max_position_embeddings", sys.maxsize)
        self._size = 0
        self._seen: dict[str, Tensor] = {}

    @contextmanager
    def extending(self, start: int, size: int) -> Iterator[None]:
        """Give each layer with a window its own mask of a prefix and of tokens beside each other.

        Args:
            start: tokens of the prefix. Those behind stand at the next place, and see of it what
                the token there sees.
            size: tokens in all.
        """
        with ExitStack() as stack:
            for name, seen in self._of(start + 1).items():
                sees = torch.eye(size, dtype=torch.bool, device=seen.device)
                sees[:start, :start] = seen[:start, :start]
                sees[start:, :start] = seen[start, :start]
                module = self._network.get_submodule(name)
                hook = module.register_forward_pre_hook(_masked(sees), with_kwargs=True)
                stack.callback(hook.remove)
            yield

    def _of(self, size: int) -> dict[str, Tensor]:
        """The windows ``(token, token seen)`` by module, of a line of ``size`` tokens or more."""
        if size > self._size:
            self._size = max(size, min(max(2 * self._size, _FEWEST), self._most))
            self._seen = self._shown(self._size)
        return self._seen

    def _shown(self, size: int) -> dict[str, Tensor]:
        masks: dict[str, Tensor] = {}

        def hook(name: str) -> Callable[..., None]:
            def keep(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:  # noqa: ANN401
                del module, args
                mask = kwargs.get("attention_mask")
                if isinstance(mask, Tensor) and mask.shape[-2:] == (size, size):
                    seen = mask.flatten(0, -3)[0]
                    masks[name] = seen if seen.dtype == torch.bool else seen == 0

            return keep

        device = next(self._network.parameters()).device
        line = torch.zeros(1, size, dtype=torch.int64, device=device)
        with ExitStack() as stack:
            for name, module in self._network.named_modules():
                handle = module.register_forward_pre_hook(hook(name), with_kwargs=True)
                stack.callback(handle.remove)
            run = partial(self._network, input_ids=line, attention_mask=torch.ones_like(line))
            inputs_of([self._last], run)
        whole = torch.ones(size, size, dtype=torch.bool, device=line.device).tril()
        return {name: seen for name, seen in masks.items() if not torch.equal(seen, whole)}


def _masked(sees: Tensor) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        mask = kwargs.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.dim() != 4:
            return None
        if mask.dtype == torch.bool:
            return args, kwargs | {"attention_mask": mask & sees}
        hidden = torch.finfo(mask.dtype).min
        return args, kwargs | {"attention_mask": mask.masked_fill(~sees, hidden)}

    return hook
