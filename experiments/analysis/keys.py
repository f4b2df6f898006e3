"""What a finding is about: a defense in a setting, and an attack on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from pydantic import ConfigDict

from fedsim.files import Record

Place: TypeAlias = tuple[str, str, str]
"""Setting, defense and defense options."""


def undefended(places: Iterable[Place]) -> dict[str, Place]:
    """Setting -> its cells without a defense, for settings that have some."""
    return {place[0]: place for place in places if place[1] == "none"}


class Data(Record):
    """A record whose infinities are written as strings, so that the file is strict JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Placed(Data):
    """Something that was found for one defense in one setting."""

    setting: str
    defense: str
    defense_options: str

    @property
    def place(self) -> Place:
        """The cells that it is about."""
        return self.setting, self.defense, self.defense_options


class Attacker(Data):
    """An attack with its options, as in the rows."""

    attack: str
    attack_options: str
    adaptive: bool
