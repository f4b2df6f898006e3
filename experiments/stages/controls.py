"""Choice of the mismatched updates behind an attack's null baseline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain

from fedsim.capture import CaptureKey
from fedsim.records import OTHER_CLIENT, SECOND_CLIENT
from fedsim.truth import TruthRecord

CONTROLS = (OTHER_CLIENT, SECOND_CLIENT)


def controls(records: Mapping[CaptureKey, TruthRecord]) -> dict[CaptureKey, dict[str, CaptureKey]]:
    """For each capture and control another capture of the same kind that shares no row with it.

    The next two clients of the same round, else the same client's next two rounds; fewer where
    there are not as many. An attack depends on its observation alone, so its guess on that update
    is the guess that it makes when it is fed another client's update.

    Args:
        records: of all captures of a cell, by round and client.
    """
    rows = {key: frozenset(record.rows) for key, record in records.items()}

    def fits(key: CaptureKey, other: CaptureKey) -> bool:
        same_kind = records[other].probe == records[key].probe
        return same_kind and rows[key].isdisjoint(rows[other])

    of_round = _first(_groups(records, lambda key: key.round), fits, set(records))
    alone = {key for key, found in of_round.items() if not found}
    return of_round | _first(_groups(records, lambda key: key.client), fits, alone)


def _groups(
    keys: Mapping[CaptureKey, TruthRecord], shared: Callable[[CaptureKey], int]
) -> list[list[CaptureKey]]:
    groups: dict[int, list[CaptureKey]] = defaultdict(list)
    for key in keys:
        groups[shared(key)].append(key)
    return list(groups.values())


def _first(
    groups: Sequence[Sequence[CaptureKey]],
    fits: Callable[[CaptureKey, CaptureKey], bool],
    wanted: Collection[CaptureKey],
) -> dict[CaptureKey, dict[str, CaptureKey]]:
    """For each wanted key the first ones after it in its group that fit, from there round."""

    def after(group: Sequence[CaptureKey], here: int) -> Iterator[CaptureKey]:
        places = chain(range(here + 1, len(group)), range(here))
        return (group[place] for place in places if fits(group[here], group[place]))

    return {
        key: dict(zip(CONTROLS, after(group, here), strict=False))
        for group in groups
        for here, key in enumerate(group)
        if key in wanted
    }
