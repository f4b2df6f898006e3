"""Which two attacks of a run are one attack, once oblivious of the defense and once adaptive."""

from __future__ import annotations

import json
from collections.abc import Iterable

from experiments.analysis.keys import Attacker


def oblivious_twin(attacker: Attacker, others: Iterable[Attacker]) -> Attacker | None:
    """The oblivious run of an adaptive attack with the same options; None where there is none."""
    if not attacker.adaptive:
        return None
    mine = _without_variant(attacker.attack_options)
    for other in others:
        same = (other.attack, _without_variant(other.attack_options)) == (attacker.attack, mine)
        if same and not other.adaptive:
            return other
    return None


def _without_variant(options: str) -> str:
    table = json.loads(options or "{}")
    table.pop("adaptive", None)
    return json.dumps(table, sort_keys=True)
