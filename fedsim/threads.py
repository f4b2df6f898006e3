"""Switches of the whole process, which one thread at a time may turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import ParamSpec

import torch

P = ParamSpec("P")
PROCESS = threading.RLock()
"""Held by the thread that has turned a switch of the whole process, until it is turned back.

The global random generators, numbers of threads and the flags of backends are no thread's own: of
two threads that turn one, the second puts back for good what the first had set for a while.
"""


def exclusive(turned: Callable[P, Iterator[None]]) -> Callable[P, AbstractContextManager[None]]:
    """As ``contextmanager``, for what turns a switch of the process: other threads wait."""

    @contextmanager
    @wraps(turned)
    def alone(*args: P.args, **kwargs: P.kwargs) -> Iterator[None]:
        with PROCESS:
            yield from turned(*args, **kwargs)

    return alone


@exclusive
def one_thread() -> Iterator[None]:
    """Compute on one thread, so that sums are taken in the same order on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
