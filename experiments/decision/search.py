"""The search for one strength of a family: bisection, and how many clients it looks at.

At a strength ever more clients are attacked, twice as many each time. It *leaks* as soon as that is
sure, and *holds* by all clients or not at all. Errors are shared so that all strengths together are
wrong with at most the error asked for. Of a false *leaks* any attack may be guilty at any strength
and look: error / (strengths * looks * attacks * targets). A false *holds* takes an upper bound that
is wrong for the one pair of attack and target that leaks: error / strengths, as in an
intersection-union test (Berger 1982).
"""

from collections.abc import Callable, Sequence

from experiments.analysis.held import Errors


def shared(
    error: float, sizes: Sequence[int], looks: int = 1, attacks: int = 1, targets: int = 1
) -> Errors:
    """So that each of the two words is wrong anywhere with at most ``error``.

    Which strengths are tried depends on the same clients, so that *leaks* shares its error among
    all there are; *holds* among those that a search may end at.

    Args:
        error: of each word, over the whole search.
        sizes: strengths of each family.
        looks: at one strength, see ``looks``.
        attacks: how many there are.
        targets: how many there are.
    """
    every = (sum(sizes) + 1) * looks * attacks * targets
    return Errors(error / every, error / (sum(map(most_tried, sizes)) + 1))


def looks(group: int, clients: int) -> list[int]:
    """Numbers of clients after which it is asked: ``group``, twice as many, and so on; all."""
    sizes = [group]
    while sizes[-1] < clients:
        sizes.append(2 * sizes[-1])
    return [*sizes[:-1], clients]


def most_tried(strengths: int) -> int:
    """How many of so many strengths a bisection tries at most."""
    return strengths.bit_length()


def bisect(strengths: int, passes: Callable[[int], bool]) -> int | None:
    """The first strength that was seen to pass, by number; None if none was.

    Assumes that every greater one does, too.

    Args:
        strengths: how many there are.
        passes: whether one of them does, by number.
    """
    low, high = -1, strengths
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high if high < strengths else None
