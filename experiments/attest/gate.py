"""What every reply of a run, or a folder, has to show, and a table of what they show.

The first is ``fedsim check --attest "noise >= .01"``, the second a part of ``fedsim evidence``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from experiments.attest.claims import Declared
from experiments.attest.findings import Attested, Finding, Part
from experiments.attest.reply import attest
from experiments.captures.captured import Captured, captured
from experiments.captures.update import Update
from fedsim.api.cell import StoredCell
from fedsim.config.build import suggest
from fedsim.config.named_code import allow
from fedsim.defenses import build_chain
from fedsim.errors import ConfigError
from fedsim.store.capture import CaptureKey
from fedsim.store.files import Record

_RULE = re.compile(r"\s*([a-z ]+?)\s*(>=|<=)\s*([-+.\de]+)\s*$")


class Rule(NamedTuple):
    """A part whose size has to be at least, or at most, a value."""

    part: Part
    most: bool
    value: float

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Read ``noise >= .01``.

        Raises:
            ConfigError: it has another form, or there is no such part.
        """
        match = _RULE.match(text)
        parts: tuple[Part, ...] = get_args(Part)
        part = next((each for each in parts if match and each == match[1]), None)
        if match is None or part is None:
            advice = suggest(match[1], parts) if match else 'Write "noise >= .01".'
            raise ConfigError(f"--attest {text!r}: is no rule. {advice}")
        return cls(part, match[2] == "<=", float(match[3]))

    def __str__(self) -> str:
        return f"{self.part} {'<=' if self.most else '>='} {self.value:g}"

    def broken(self, seen: Finding) -> str:
        """Why a finding breaks it; empty if it does not."""
        if seen.state == "absent" and seen.value is None:
            known = (0.0, 0.0)
        elif seen.state == "open" or seen.value is None:
            return seen.text
        else:
            known = (
                seen.value if seen.low is None else seen.low,
                seen.value if seen.high is None else seen.high,
            )
        # Noise of the very size that is asked for has an interval around it.
        met = known[0] <= self.value if self.most else known[1] >= self.value
        return "" if met else f"{known[1]:.3g}"


def unmet(
    folder: Path, texts: Sequence[str], model: str | None = None, loss: str | None = None
) -> list[str]:
    """A line for each reply that does not show what is asked of it, or does not tell.

    Args:
        folder: captures, or a run, each of whose cells has some.
        texts: rules such as ``noise >= .01``.
        model: of captures that name code of an application.
        loss: likewise.
    """
    for name in (model, loss):
        allow(name or "")
    rules = [Rule.parse(text) for text in texts]
    return [
        f"{place}{victim.observation.key}: {rule} is asked: {why}"
        for place, _, victim in _replies(folder, model, loss)
        for seen in [attest(victim)]
        for rule in rules
        if (why := rule.broken(seen[rule.part]))
    ]


class SiteRound(Record):
    """One reply of a site.

    Attributes:
        place: the cell of the run; empty without one.
        key: site and round.
        attested: what it shows of a defense.
        claimed: the defense that was configured, and how the reply stands to it.
        guarded: what the site's guard said, which nobody believes.
    """

    place: str
    key: CaptureKey
    attested: str
    claimed: str
    guarded: str


def attested(run: Path) -> list[SiteRound]:
    """Site by round: what was attested, what was claimed, and what the site's guard said.

    Args:
        run: with captures; none are no error.

    Example:
        >>> import fedsim
        >>> from pathlib import Path
        >>> for site in fedsim.attested(Path("runs/quickstart")):  # doctest: +SKIP
        ...     print(site.key, site.attested, site.claimed, site.guarded, sep=" | ")
    """
    there = any(run.glob("*/captures"))
    return [
        SiteRound(
            place=place.strip(),
            key=victim.observation.key,
            attested="; ".join(seen[part].text for part in seen.defenses) or "no defense is seen",
            claimed=_claimed(run / place.strip(), victim, seen),
            guarded=_guarded(captures.store.record(victim.observation.key).metrics),
        )
        for place, captures, victim in (_replies(run) if there else ())
        for seen in [attest(victim)]
    ]


def _claimed(cell: Path, victim: Update, seen: Attested) -> str:
    chain = build_chain(StoredCell(cell).config.defense, "defense")
    if not chain.names:
        return "nothing"
    held = Declared(chain.name, chain).held(victim, seen)
    return f"{chain.name}: {'; '.join((held.word, *held.reasons))}"


def _guarded(metrics: Mapping[str, object]) -> str:
    """Its metrics, as ``guard_mod`` names them."""
    said = {k.removeprefix("guard-"): v for k, v in metrics.items() if k.startswith("guard-")}
    shown = [test for test, value in said.items() if value]
    return f"shows {', '.join(shown)}" if shown else "nothing shows" if said else "no guard"


def _replies(
    folder: Path, model: str | None = None, loss: str | None = None
) -> Iterator[tuple[str, Captured, Update]]:
    cells = sorted(folder.glob("*/captures"))
    places = [(f"{cell.parent.name} ", cell) for cell in cells] or [("", folder)]
    for place, captures in ((place, captured(path, model, loss=loss)) for place, path in places):
        yield from ((place, captures, victim) for victim in captures)
