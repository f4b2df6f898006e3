"""What the small experiments gave that tell whether a published result still holds."""

import tomllib
from collections.abc import Mapping
from typing import TypeAlias

import tomli_w
from pydantic import Field

from docs import measured
from docs.measured import Strict
from fedsim.store.files import write_bytes

Values: TypeAlias = dict[str, float | str]
"""By defense, attack and metric; the status of jobs that gave nothing."""


class Probe(Strict):
    """What a small experiment gave when its result was written.

    Attributes:
        date: on which it was written.
        seconds: CPU time.
        stale: what it gives now, where that is something else.
    """

    date: str
    seconds: float
    values: Values
    stale: Values = Field(default_factory=dict)


def probes() -> dict[str, Probe]:
    """The probes by the name of their result file."""
    path = measured.RESULTS / "probes.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: Probe.model_validate(table) for name, table in tables.items()}


def keep(known: Mapping[str, Probe]) -> None:
    """Write the probes."""
    tables = {name: known[name].model_dump(exclude_defaults=True) for name in sorted(known)}
    write_bytes(measured.RESULTS / "probes.toml", tomli_w.dumps(tables).encode())


def stale(name: str) -> str:
    """What the page says below a table whose probe no longer gives what it gave; else empty."""
    probe = probes().get(name)
    if not probe or not probe.stale:
        return ""
    place, now = next(iter(probe.stale.items()))
    more = f" and {len(probe.stale) - 1} more" * (len(probe.stale) > 1)
    return (
        f" **Stale**: the probe of this table gave {probe.values.get(place, 'nothing')} on "
        f"{probe.date} and gives {now} today ({place}{more})."
    )
