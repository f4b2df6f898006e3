"""What several replies show together: a clipping norm, and noise that was not drawn anew.

Half and twice of each threshold judge the 134 replies of ``noise`` alike but for ``_FEWEST``.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from experiments.attest.claims import Declared, Held, verdict
from experiments.attest.findings import Attested, Finding
from experiments.attest.noise import at_most
from experiments.attest.reply import attest
from experiments.captures.update import Update
from fedsim.magnitudes import squared_norm
from fedsim.store.files import Record

_SAME_NORM = 4e-6
"""Relative spread of the norms of updates that were cut to one in float32."""
_FEWEST = 3
"""Replies of one norm; of six, three rounds of one client show none."""
_BY_CHANCE = 1e-3
"""Of norms that lie as densely as those beside them, below which as many are one by clipping."""
_COMPARED = 20_000
"""Entries of the largest tensor by which the noise of two replies is compared."""
_COPIED = 0.5
"""Share of its noise that the difference of two replies can carry at most, below which it was the
same noise: of two that were drawn it is 1.41."""


class Federation(Record):
    """All replies that were read.

    Attributes:
        replies: what each shows.
        clip: what their norms show.
        copies: replies whose noise is that of another.
        claim: as it was stated; empty without one.
        held: the claim beside its own numbers, each reply and their copies.
    """

    replies: tuple[Attested, ...]
    clip: Finding
    copies: tuple[str, ...] = ()
    claim: str = ""
    held: tuple[Held, ...] = ()

    @property
    def refuted(self) -> bool:
        """Whether a number contradicts the claim."""
        return bool(self.held) and verdict(self.held) == "refuted"

    def __str__(self) -> str:
        """A line for each reply, then what they show together, and the claim."""
        lines = [str(each) for each in self.replies]
        lines += [f"clip: {self.clip.text}.", *self.copies]
        if self.held:
            decisive = [each for each in self.held if each.word == "refuted"] or list(self.held)
            lines += [*map(str, decisive), f"claim {self.claim!r}: {verdict(self.held)}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Kept:
    """Of one reply, what the next ones are compared with."""

    shown: Attested
    norm: float
    part: Tensor


def attest_all(victims: Iterable[Update], claim: Declared | None = None) -> Federation:
    """What replies of rounds and clients show, each alone and all together.

    Args:
        victims: as ``fedsim.captured`` yields them.
        claim: what their defense is said to be.
    """
    kept, held = list[_Kept](), [] if claim is None else [claim.itself()]
    for victim in victims:
        shown = attest(victim)
        kept.append(_kept(victim, shown))
        if claim is not None:
            held.append(claim.held(victim, shown))
    copies = list(_copies(kept))
    if claim is not None:
        held += [Held(key=each.shown.key, word="refuted", reasons=(said,)) for each, said in copies]
    return Federation(
        replies=tuple(each.shown for each in kept),
        clip=clip_of(kept),
        copies=tuple(f"{each.shown.key}: {said}." for each, said in copies),
        claim="" if claim is None else claim.text,
        held=tuple(held),
    )


def _kept(victim: Update, shown: Attested) -> _Kept:
    update = victim.observation.update()
    largest = max(update.values(), key=lambda value: value.numel())
    return _Kept(shown, float(squared_norm(update)) ** 0.5, largest.flatten()[:_COMPARED].clone())


def clip_of(kept: Sequence[_Kept]) -> Finding:
    """A norm that several replies have, where norms are not as dense as that beside it.

    Steps of one length, as Adam's first one, have such norms, too, and noise hides them. The same
    number to all its digits is the same update.
    """
    bare = [each for each in kept if each.shown["cut"].state != "open"]
    norms = sorted({each.norm for each in bare if each.shown["noise"].state != "present"})
    runs = [bisect_right(norms, norm * (1 + _SAME_NORM)) - at for at, norm in enumerate(norms)]
    count = max(runs, default=0)
    at = runs.index(count) if runs else 0
    if count < _FEWEST or _chance(norms, at, count) > _BY_CHANCE:
        return Finding(part="clip", state="open", text=f"no norm that {_FEWEST} replies have")
    value = norms[at + count // 2]
    return Finding(
        part="clip",
        state="present",
        text=f"{count} of {len(kept)} replies have the norm {value:.5g}, as clipping makes them",
        value=value,
        low=value * (1 - _SAME_NORM),
        high=value * (1 + _SAME_NORM),
    )


def _chance(norms: Sequence[float], at: int, count: int) -> float:
    """That so many norms are one by chance, as those beside them lie."""
    below, above = norms[max(0, at - _FEWEST) : at][::-1], norms[at + count :][:_FEWEST]
    gaps = [abs(norms[at] - side[-1]) / len(side) for side in (below, above) if side]
    width = _SAME_NORM * norms[at]
    return len(norms) * (width / min(gaps, default=math.inf)) ** (count - 1)


def _copies(kept: Sequence[_Kept]) -> Iterator[tuple[_Kept, str]]:
    """Replies with the noise of the one before, of the same client or in the same round."""
    for at, each in enumerate(kept):
        noise = each.shown["noise"].value
        if not noise:
            continue
        key = each.shown.key
        before = [other for other in kept[:at] if len(other.part) == len(each.part)]
        mine = [other for other in before if other.shown.key.client == key.client][-1:]
        beside = [other for other in before if other.shown.key.round == key.round][-1:]
        for other in mine + beside:
            most = at_most(each.part - other.part)
            if most < _COPIED * noise:
                yield each, f"its noise of {noise:.3g} is that of {other.shown.key}"
