"""Shared vocabulary of fedsim: batches, tasks, models, defenses, metrics, captures and truth.

May import: none of the others; names of theirs are imported at their first use.
"""

import importlib
import os
from typing import Any

# Flower, Ray and the hub libraries read these on import, so they have to be set first.
for _name, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(_name, _value)

__version__ = "0.2.0"

_OFFERED = {
    "Attack": "attacks.base",
    "CanaryRows": "fedsim.canaries",
    "Eavesdropper": "server.eavesdropper",
    "Guard": "experiments.attest.guard",
    "Guess": "experiments.captures.guess",
    "Reconstruction": "attacks.base",
    "Scores": "experiments.captures.scoring",
    "Update": "experiments.captures.update",
    "attack": "experiments.captures.attacking",
    "attest": "experiments.attest.reply",
    "attested": "experiments.attest.gate",
    "canary_mod": "clients.canary_mod",
    "canary_update": "fedsim.canaries",
    "captured": "experiments.captures.captured",
    "guard_mod": "experiments.attest.guard_mod",
    "load": "experiments.report.run_frames",
    "score": "experiments.captures.scoring",
    "suited": "experiments.captures.suitability",
    "tap": "server.tap",
    "truth_mod": "clients.truth_mod",
}
"""The interface for audits and attacks, above this package, which imports it at its first use."""


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_OFFERED[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_OFFERED})
