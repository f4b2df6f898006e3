"""The mismatched updates behind an attack's null baseline."""

from __future__ import annotations

from experiments.stages.donors import Donor, donors_of
from experiments.stages.victims import Victims
from fedsim.capture import CaptureKey
from fedsim.records import CONTROLS


def controls(victims: Victims) -> dict[CaptureKey, dict[str, Donor]]:
    """For each capture and control a donor that shares no row with it; fewer where there is none.

    An attack depends on its observation alone, so that its guess at a donor with equal facts is the
    guess that it makes when the victim's reply is exchanged for the donor's.
    """
    rows = {key: frozenset(record.rows) for key, record in victims.records.items()}
    by_key = {}
    for key, known in donors_of(victims.cell).items():
        apart = [donor for donor in known if rows[key].isdisjoint(rows[donor.key])]
        by_key[key] = dict(zip(CONTROLS, apart, strict=False))
    return by_key
