"""What a run showed, as its report says it: systems, attacks, words, persons, privacy, cost."""

from typing import Literal, TypeAlias

from fedsim.store.files import SCHEMA, Data, Sealed

Objective: TypeAlias = Literal["data reconstruction", "membership inference"]
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
        setting: what tells the cells from others beside defense and seed; empty if nothing does.
        defense: as it is spoken of.
        options: of the defense, as canonical JSON.
        word: the verdict.
        grade: how bad a leak is; empty without one.
        statement: in sentences.
        clients: number of clients that were attacked.
        victims: number of their examples, counted once per round.
        strongest: the attack with the highest mean; empty if none ran.
        mean: that it reached, of the main metric; None if none ran.
        null: mean of the baseline that it beats by least; None without one.
    """

    dataset: str
    model: str
    setting: str
    defense: str
    options: str
    word: str
    grade: str
    statement: str
    clients: int
    victims: int
    strongest: str
    mean: float | None
    null: float | None


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
        by_relation: the same under both relations of neighbours, with the sampling that it assumes
            and whether a search is in it, in words.
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
    by_relation: str
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


class Findings(Sealed):
    """``findings.json``: what the report concluded, in words and numbers; no private rows.

    Attributes:
        attacker: who is simulated, in sentences.
        attacks: the register: each attack under each defense.
        untried: what was not attacked, and by what.
    """

    schema_version: int = SCHEMA
    attacker: str
    systems: tuple[System, ...]
    attacks: tuple[Tested, ...]
    untried: tuple[str, ...]
    conclusions: tuple[Conclusion, ...]
    persons: tuple[WorstPerson, ...]
    privacy: tuple[PrivacyCard, ...]
    utility: tuple[UtilityCost, ...]
    risks: tuple[Risk, ...]
