"""Random generators that depend only on a seed and on the place where they are used."""

import random
import zlib
from collections.abc import Iterator

import numpy as np
import torch
from torch.nn import init

from fedsim.errors import ConfigError
from fedsim.process import exclusive

SECRET_BITS = 48
"""Of a seed that is meant as a secret. Trying a seed takes a draw of the first weights, 0.1 ms for
a LeNet: 2^48 of them are 900 years of one core, 2^40 are 3."""
_OFFSET, _WORDS = 24, 624
"""Where torch keeps the words of the Mersenne Twister in its state, 8 bytes for each of 32 bits."""
_INITIALISERS = tuple(name for name in vars(init) if name.endswith("_") and name[0] != "_")


def _sequence(seed: int, path: tuple[str | int, ...]) -> np.random.SeedSequence:
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    return np.random.SeedSequence([seed, *words])


def derive(seed: int, *path: str | int) -> int:
    """A 63-bit seed for ``path``, for example ``derive(0, "attack", round, client, "dlg")``.

    The first 63 bits of a numpy ``SeedSequence`` over the seed and the path, strings as CRC-32.
    """
    return int(_sequence(seed, path).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(seed: int, *path: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Torch generator for ``path``; equal paths give equal numbers in any process.

    On the CPU torch takes 32 bits of a seed, so that whoever sees noise where nothing else is can
    try them all and take the noise off. Of a secret seed the whole state is drawn instead.
    """
    rng = torch.Generator(device=device).manual_seed(derive(seed, *path))
    if seed.bit_length() >= SECRET_BITS and rng.device.type == "cpu":
        state = rng.get_state()
        words = _sequence(seed, path).generate_state(_WORDS, np.uint32).astype(np.uint64)
        state[_OFFSET : _OFFSET + words.nbytes] = torch.from_numpy(words.view(np.uint8))
        rng.set_state(state)
    return rng


@exclusive
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python, and restore them afterwards.

    Dropout and new layers draw from torch's, and attacks of others from any. ``torch.manual_seed``
    is avoided: it records a stack trace for every missing kind of device. Other threads that want
    to seed these generators wait.

    Raises:
        ConfigError: torch's initialisers are not its own, so that new layers would not be drawn.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        check_initialisers()
        before = np.random.get_state(), random.getstate()
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        if devices:
            torch.cuda.manual_seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])


def check_initialisers() -> None:
    """Raise ``ConfigError`` if a function of ``torch.nn.init`` was replaced.

    transformers replaces them for the whole process while it loads a model, by ones that do
    nothing; were they left, weights would be whatever the memory held.
    """
    for name in _INITIALISERS:
        function = getattr(init, name)
        if function.__module__ != init.__name__:
            raise ConfigError(
                f"torch.nn.init.{name}: it is {function.__module__}.{function.__qualname__}, so "
                "that new layers may stay uninitialised. Put it back, and load no model in another "
                "thread meanwhile."
            )


def numpy_generator(seed: int, *path: str | int) -> np.random.Generator:
    """Numpy generator for ``path``; equal paths give equal numbers in any process."""
    return np.random.default_rng(_sequence(seed, path))
