"""Error feedback: what compression leaves out of an update is added to the client's next one."""

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedsim.defenses.base import Defense, DefenseFamily, Distortion


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(Defense):
    """Carries the error of the defenses after it over the rounds (Stich et al. 2018, "Mem-SGD").

    With the compression C of all defenses of the update that follow in the chain, and e = 0 before
    a client's first round, it sends

        C(u + e),  and keeps  e <- u + e - C(u + e).

    ``prune`` after it makes top-k sparsification as it is used in training (Aji and Heafield 2017),
    ``sign`` makes EF-signSGD (Karimireddy et al. 2019). Nothing is lost any more but delayed, so a
    received update mixes the examples of several rounds, and small coordinates of a row come later
    instead of never. A probe keeps a memory of its own.

    The surrogate is that of the compression: an attacker does not know e, which is 0 in the first
    round.
    """

    title: ClassVar[str] = "error feedback"
    family: ClassVar[DefenseFamily] = "compression"
    known: ClassVar[str] = "What the compression after it says; the memory is private."
    loses: ClassVar[frozenset[Distortion]] = frozenset({"noise"})

    @property
    def remembers(self) -> bool:
        """Always."""
        return True
