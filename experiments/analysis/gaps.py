"""Paired gaps between two runs of one attack: adaptive less oblivious, defended less undefended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from statistics import fmean

from experiments.analysis.evidence import Gap
from experiments.analysis.paired import Scored, difference
from fedsim.records import AttackKey


def gap_of(attack: Scored, base: Scored, *, comparisons: int = 1) -> Gap | None:
    """``one`` less ``base`` on their common victims, filed under ``one``; None without any."""
    between = difference(attack.values, base.values, comparisons=comparisons)
    if between is None:
        return None
    both = sorted(attack.values.keys() & base.values.keys())
    return Gap(
        **attack.place._asdict(),
        attacker=attack.attacker,
        value=fmean(attack.values[victim] for victim in both),
        base=fmean(base.values[victim] for victim in both),
        difference=between,
    )


def adaptive_gaps(attacks: Sequence[Scored]) -> list[Gap]:
    """Adaptive less oblivious, for each attack that ran in both variants.

    The intervals hold together, over all attacks and defenses that are given (Bonferroni).
    """
    known = {(attack.place, attack.attacker): attack for attack in attacks}
    pairs = []
    for (place, attacker), adapted in known.items():
        twin = oblivious_twin(attacker, [key for where, key in known if where == place])
        if twin:
            pairs.append((adapted, known[place, twin]))
    return [
        gap for adapted, base in pairs if (gap := gap_of(adapted, base, comparisons=len(pairs)))
    ]


def oblivious_twin(attacker: AttackKey, others: Iterable[AttackKey]) -> AttackKey | None:
    """The oblivious variant of an adaptive attack, its other options equal; None without one."""
    if not attacker.adaptive:
        return None
    plain = (other for other in others if not other.adaptive)
    return next((other for other in plain if same_search(attacker, other)), None)


def same_search(attacker: AttackKey, other: AttackKey) -> bool:
    """Whether two attacks are one but for being adapted to the defense or not."""
    return attacker.attack == other.attack and _shared_options(attacker) == _shared_options(other)


def _shared_options(attacker: AttackKey) -> str:
    """The options that both variants share."""
    table = json.loads(attacker.attack_options or "{}")
    return json.dumps({k: v for k, v in table.items() if k != "adaptive"}, sort_keys=True)
