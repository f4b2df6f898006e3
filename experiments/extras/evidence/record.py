"""``evidence.json``: what a privacy assessment asks of a run; no private rows and no guesses."""

from __future__ import annotations

from typing import Literal, TypeAlias

from experiments.analysis.keys import Data
from fedsim.files import SCHEMA, Sealed

Objective: TypeAlias = Literal["data reconstruction", "membership inference", "property inference"]
"""Attackers' objectives against privacy in the words of NIST AI 100-2 E2025, section 2.4."""


class System(Data):
    """What was simulated.

    Attributes:
        described: what and value, in reading order.
        flow: the way of the data, in sentences.
        level: rung of the ladder of realism; empty of another application, whose is not known.
        unmet: what the next rung would take.
        granted: facts that the server was told.
        withheld: facts that it was not told.
    """

    name: str
    described: tuple[tuple[str, str], ...]
    flow: tuple[str, ...]
    level: str
    unmet: tuple[str, ...]
    granted: tuple[str, ...]
    withheld: tuple[str, ...]


class Tested(Data):
    """One attack under one defense: a line of the register.

    Attributes:
        version: of fedsim, and the commit of the attack stage.
        date: of the run, UTC.
        options: all of them.
        adapted: whether the attack uses the declared defense.
        budget: steps, seconds and captures.
        jobs: by status.
        outcome: the number with its interval, beside the null baseline.
    """

    objective: Objective
    setting: str
    defense: str
    attack: str
    what: str
    options: str
    adapted: bool
    version: str
    date: str
    budget: str
    jobs: dict[str, int]
    outcome: str


class Conclusion(Data):
    """What all attacks on one defense show.

    Attributes:
        word: the verdict.
        statement: in sentences.
    """

    setting: str
    defense: str
    word: str
    grade: str
    statement: str


DOUBTFUL = "exact, chance not excluded"
"""Of examples that came back exactly where a blind guess comes near to others, or is exact too."""


class WorstPerson(Data):
    """Clients with at least one example that came back, under any attack.

    Attributes:
        kind: ``verbatim``, ``recognisable`` or ``DOUBTFUL``.
        high: the share of clients is at most this, at 95 % (Clopper and Pearson, one-sided).
        low: and at least this.
    """

    setting: str
    defense: str
    kind: str
    hit: int
    of: int
    low: float
    high: float


class PrivacyCard(Data):
    """Differential privacy of one defense, in the fields that registries of deployments ask for.

    Attributes:
        unit: what one epsilon protects.
        neighbours: which data sets are to be told apart.
        trust: who has to be trusted.
        claimed: epsilon by the accountant, of the client that spent most.
        audited: the greatest lower bound that canaries showed; None without an audit.
    """

    setting: str
    defense: str
    unit: str
    neighbours: str
    trust: str
    mechanism: str
    claimed: float
    delta: float
    rounds: int
    audited: float | None
    caveat: str


class UtilityCost(Data):
    """Utility at the end of training, and its change from no defense over the same seeds."""

    setting: str
    defense: str
    measure: str
    value: str
    change: str


class Risk(Data):
    """An open risk. Likelihood, severity and measure are the controller's to judge."""

    risk: str
    source: str


class EvidenceRecord(Sealed):
    """The whole of ``evidence.json``.

    Attributes:
        made: date of the folder, UTC.
        review: date by which it is to be looked at again.
        untried: what was not attacked, and by what.
        provenance: what and value.
        command: what repeats the run.
        sources: SHA-256 of the files of the run that this rests on, by name.
    """

    schema_version: int = SCHEMA
    name: str
    made: str
    review: str
    systems: tuple[System, ...]
    attacks: tuple[Tested, ...]
    untried: tuple[str, ...]
    conclusions: tuple[Conclusion, ...]
    persons: tuple[WorstPerson, ...]
    privacy: tuple[PrivacyCard, ...]
    utility: tuple[UtilityCost, ...]
    risks: tuple[Risk, ...]
    command: str
    provenance: tuple[tuple[str, str], ...]
    sources: dict[str, str]
