"""How a defense is made stronger: one option, its range, and how values are spaced in it."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Strength:
    """One option of a defense, from its weakest to its strongest useful value.

    Attributes:
        option: name of the option.
        weakest: the value that protects least; above ``strongest`` where less is stronger.
        strongest: the value that protects most.
        scale: ``log`` spaces the values by equal factors, ``linear`` by equal steps, and ``rest``
            by equal factors of what is missing to ``end``, as for a share that approaches 1.
        end: upper end of the option's own scale, for ``rest``.
        whole: whether the option takes whole numbers.
    """

    option: str
    weakest: float
    strongest: float
    scale: Literal["log", "linear", "rest"] = "log"
    end: float = 1.0
    whole: bool = False

    def __post_init__(self) -> None:
        ends = (self._position(self.weakest), self._position(self.strongest))
        if ends[0] == ends[1] or not all(map(math.isfinite, ends)):
            raise ValueError(
                f"{self.option} from {self.weakest:g} to {self.strongest:g} is no range on a "
                f"{self.scale} scale"
            )

    def values(self, count: int) -> tuple[float, ...]:
        """Evenly spaced values from the weakest to the strongest, to three digits.

        Args:
            count: 1 takes the middle. Whole numbers may be fewer, as none is repeated.
        """
        low, high = self._position(self.weakest), self._position(self.strongest)
        steps = [i / (count - 1) for i in range(count)] if count > 1 else [0.5]
        spaced = [low + (high - low) * step for step in steps]
        return tuple(dict.fromkeys(map(self._value, spaced)))

    def _position(self, value: float) -> float:
        """Where a value stands on the scale; infinite if it does not."""
        if self.scale == "linear":
            return value
        distance = self.end - value if self.scale == "rest" else value
        return math.log(distance) if distance > 0 else math.inf

    def _value(self, position: float) -> float:
        if self.scale == "linear":
            value = _rounded(position)
        elif self.scale == "log":
            value = _rounded(math.exp(position))
        else:
            value = round(self.end - _rounded(math.exp(position)), 12)
        return round(value) if self.whole else value


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
