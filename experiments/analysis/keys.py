"""Keys of rows and findings: a defense in a setting, a victim. Scripts outside import them here."""

from typing import NamedTuple

from fedsim.store.files import Data


class DefenseInSetting(NamedTuple):
    """One defense in one setting; the cells under it differ in their seeds alone.

    Attributes:
        setting: the swept options of the cells, such as ``batch_size=4``; empty if none differ.
        defense: its name, ``none`` for no defense, the names of a chain joined by ``+``.
        defense_options: its options as canonical JSON.
    """

    setting: str
    defense: str
    defense_options: str


class VictimKey(NamedTuple):
    """One private example in one round.

    Attributes:
        example: position in the client's batch.
        row: number of the example in its split; -1 if unknown.
    """

    seed: int
    client: int
    round: int
    example: int
    row: int

    @property
    def owner(self) -> int:
        """The client whose example it is; intervals are clustered by it.

        Clients are people and seeds are not: under several seeds it is the same client.
        """
        return self.client


class Placed(Data):
    """A finding about one defense in one setting."""

    setting: str
    defense: str
    defense_options: str

    @property
    def place(self) -> DefenseInSetting:
        """The defense and the setting that the finding is about."""
        return DefenseInSetting(self.setting, self.defense, self.defense_options)
