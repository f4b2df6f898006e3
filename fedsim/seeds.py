"""Random numbers that depend on where they are used and on nothing else."""

from __future__ import annotations

import zlib

import numpy as np
import torch


def _sequence(seed: int, path: tuple[str | int, ...]) -> np.random.SeedSequence:
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    return np.random.SeedSequence([seed, *words])


def derive(seed: int, *path: str | int) -> int:
    """A 63-bit seed for ``path``, for example ``derive(0, "attack", round, client, "dlg")``."""
    return int(_sequence(seed, path).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(seed: int, *path: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator for ``path``; the same path gives the same numbers in any process."""
    return torch.Generator(device=device).manual_seed(derive(seed, *path))


def numpy_generator(seed: int, *path: str | int) -> np.random.Generator:
    """The numpy generator for ``path``."""
    return np.random.default_rng(_sequence(seed, path))
