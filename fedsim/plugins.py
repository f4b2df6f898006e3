"""What authors of attacks import; the same in a checkout and in a wheel.

``attacks`` lies above this package, and in a wheel below it, so that its names are imported at
their first use. Defenses, metrics and tasks are written with ``fedsim.defenses.base``,
``fedsim.metrics.base`` and ``fedsim.tasks.base``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attacks.base import Attack, Job, Reconstruction
    from attacks.observed.known_labels import known_labels
    from attacks.tokens.layout import batch_of
    from fedsim.store.capture import Observation

__all__ = ["Attack", "Job", "Observation", "Reconstruction", "batch_of", "known_labels"]

_HOMES = {
    "Attack": "attacks.base",
    "Job": "attacks.base",
    "Observation": "fedsim.store.capture",
    "Reconstruction": "attacks.base",
    "batch_of": "attacks.tokens.layout",
    "known_labels": "attacks.observed.known_labels",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
