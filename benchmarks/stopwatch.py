"""CPU time of one thread, which excludes the time that other programs use the core."""

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of a call in this thread, and its result."""
    started = time.thread_time()
    result = run()
    return time.thread_time() - started, result


def in_turn(repeats: int, *runs: Callable[[], object]) -> list[list[float]]:
    """CPU seconds of each function, called alternately after one warm-up round."""
    rounds = [[timed(run)[0] for run in runs] for _ in range(repeats + 1)]
    return [list(column) for column in zip(*rounds[1:], strict=True)]


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median ratio of CPU times over the pairs of runs."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))
