"""``findings.json``: what a run showed, for whoever reads it by ``fedsim.api``.

Truth, guesses and gallery are not opened.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.bounds.audit import AuditRecord, AuditRow
from experiments.plan.folder import Run
from experiments.plan.levels import CONDITIONS, LEVELS, LeveledSections, level_of
from experiments.report.details import share
from experiments.report.naming import attack_label, named_place, spoken_place, useful
from experiments.report.register import register, untried
from experiments.report.statements import stated
from experiments.wording.catalogue import sentence
from experiments.wording.names import spoken, title
from experiments.wording.threat import threat_model
from fedsim.api.findings import (
    DOUBTFUL,
    Conclusion,
    Findings,
    PrivacyCard,
    Risk,
    System,
    UtilityCost,
    WorstPerson,
)
from fedsim.config.cell import CellConfig
from fedsim.defenses import build_chain
from fedsim.defenses.base import Defense
from fedsim.records import LOST
from fedsim.store.files import write_json
from fedsim.tasks import from_elsewhere
from fedsim.visible import redacted

FINDINGS = "findings.json"


def write_findings(run: Run, sections: Sequence[TaskFindings]) -> None:
    """Write ``findings.json``, by which others read what the run showed."""
    write_json(run.root / FINDINGS, Assessment(run, sections).findings().sealed())


@dataclass(frozen=True)
class Assessment:
    """What the numbers of one run show, in the words of its report."""

    run: Run
    sections: Sequence[TaskFindings]

    def findings(self) -> Findings:
        """All of it."""
        attacks = tuple(register(self.run, self.sections, self.run.provenance))
        return Findings(
            attacker=sentence("threat.attacker"),
            systems=tuple(map(self._system, self.sections)),
            attacks=attacks,
            untried=tuple(untried(self.run, self.sections, attacks)),
            conclusions=tuple(c for section in self.sections for c in _conclusions(section)),
            persons=tuple(p for section in self.sections for p in _persons(section)),
            privacy=tuple(privacy_cards(self.run, self.sections)),
            utility=tuple(u for section in self.sections for u in _utility(section)),
            risks=tuple(self._risks()),
        )

    def _system(self, section: TaskFindings) -> System:
        mine = [cell for cell in self.run.cells if cell.name in section.cells]
        cells = [cell.config for cell in mine]
        foreign = any(from_elsewhere(cell.captures.root) for cell in mine)
        threat = threat_model(cells, foreign=foreign)
        described = (
            ("task", title(section.task)),
            ("model", section.model),
            ("data set", section.dataset),
            *threat.protocol,
            ("defenses", "; ".join(threat.defenses)),
        )
        return System(
            name=f"{section.dataset}, {section.model}, {title(section.protocol)}",
            described=tuple((what, redacted(value)) for what, value in described),
            flow=tuple(_flow(cells)),
            level="" if foreign else level_of(cells[0]),
            unmet=() if foreign else tuple(_unmet(cells[0])),
            granted=threat.granted,
            withheld=threat.withheld,
        )

    def _risks(self) -> Iterator[Risk]:
        """What the numbers leave open; nothing here is a judgement of harm."""
        for section in self.sections:
            for verdict in section.evidence.verdicts:
                where = f"{spoken_place(verdict.place)}, {section.dataset}"
                for risk in _open(verdict):
                    yield Risk(risk=risk, source=f"verdict on {where}")
                if verdict.rows != "leaks" and verdict.clients:
                    risk = sentence("risk.exact", share=share(verdict.verbatim.high))
                    yield Risk(risk=risk, source=f"worst person under {where}")
                if lost := sum(verdict.jobs[status] for status in LOST):
                    risk = sentence("risk.lost", jobs=lost)
                    yield Risk(risk=risk, source=f"register, {where}")
        for reason, source in _ALWAYS.items():
            yield Risk(risk=sentence(reason), source=source)


_ALWAYS = {
    "risk.stronger": "the attacks of the register, under its budgets",
    "threat.out_of_scope": "threat model",
    "risk.other": "the system that is described here",
}
"""Open risks of any run, and their sources."""


def _open(verdict: Verdict) -> Iterator[str]:
    if verdict.word in ("leaks", "labels leak", "members leak"):
        grade = f", {verdict.grade}" if verdict.grade else ""
        yield f"{verdict.word.capitalize()}{grade}."
    if verdict.rows in ("not decided", "not attacked"):
        yield sentence(f"risk.{verdict.rows}")


def _conclusions(section: TaskFindings) -> Iterator[Conclusion]:
    bases = {v.setting: v for v in section.evidence.verdicts if v.defense == "none"}
    for verdict in section.evidence.verdicts:
        setting, name = named_place(verdict.place)
        said = stated(section, verdict, bases.get(verdict.setting))
        strongest = verdict.strongest
        yield Conclusion(
            dataset=section.dataset,
            model=section.model,
            setting=setting,
            defense=spoken(name),
            options=verdict.defense_options,
            word=said.said,
            grade=said.grade,
            statement=redacted(f"{said.lead} {said.detail}".strip()),
            clients=verdict.clients,
            victims=verdict.victims,
            strongest=attack_label(section, strongest.attacker) if strongest else "",
            mean=strongest.leakage.mean if strongest else None,
            null=verdict.nulls.get(verdict.null) if verdict.null else None,
        )


def _persons(section: TaskFindings) -> Iterator[WorstPerson]:
    for verdict in section.evidence.verdicts:
        setting, name = named_place(verdict.place)
        known = [("verbatim", verdict.verbatim), ("recognisable", verdict.recovered)]
        if verdict.exact.hit > verdict.verbatim.hit:
            known.append((DOUBTFUL, verdict.exact))
        for kind, clients in known:
            if clients.of:
                yield WorstPerson(
                    setting=setting,
                    defense=spoken(name),
                    kind=kind,
                    hit=clients.hit,
                    of=clients.of,
                    low=clients.low,
                    high=clients.high,
                )


def _utility(section: TaskFindings) -> Iterator[UtilityCost]:
    for place in section.places:
        value, change, _ = useful(section, place)
        setting, name = named_place(place)
        if value is not None:
            yield UtilityCost(
                setting=setting,
                defense=spoken(name),
                measure=title(section.utility_name or ""),
                value=str(value),
                change="" if change is None else str(change),
            )


def _flow(cells: Sequence[CellConfig]) -> Iterator[str]:
    run = cells[0].federation
    parts = {str(part.get("name")) for cell in cells for part in cell.defense} - {"none"}
    yield sentence("flow.clients", clients=run.clients)
    yield sentence(f"flow.{run.protocol}")
    yield from [sentence("flow.defended")] if parts else []
    yield sentence("flow.sums" if run.cohort > 1 else "flow.replies", cohort=run.cohort)


def _unmet(cell: CellConfig) -> Iterator[str]:
    """Conditions of the first rung that is not reached."""
    given = LeveledSections(cell.federation, cell.server_knows, cell.capture)
    for level in LEVELS:
        unmet = [condition for condition in CONDITIONS[level] if not condition.holds(given)]
        if unmet:
            yield from (f"{level}: {condition.option} {condition.needs}" for condition in unmet)
            return


def privacy_cards(run: Run, sections: Sequence[TaskFindings]) -> Iterator[PrivacyCard]:
    """A card for each defense that claims an epsilon."""
    audited = run.record("audit.json", AuditRecord)
    audits = audited.rows if audited else ()
    configs = {cell.name: cell.config for cell in run.cells}
    for section in sections:
        for place in dict.fromkeys(row.place for row in section.utility):
            cells = [name for name, at in section.by_cell.items() if at == place] or section.cells
            cell = next(configs[name] for name in cells)
            chain = build_chain(cell.defense, "defense")
            spent = useful(section, place)[2]
            if chain.unit is None or spent is None:
                continue
            setting, name = named_place(place)
            private = next(defense for defense in chain.defenses if defense.unit is not None)
            yield PrivacyCard(
                setting=setting,
                defense=name,
                unit=sentence(f"privacy.{chain.unit}"),
                neighbours=_neighbours(private),
                trust=sentence("privacy.trust"),
                mechanism="clipping and Gaussian noise",
                claimed=spent.epsilon,
                delta=private.gaussian.delta if private.gaussian else 0.0,
                by_relation=str(spent),
                rounds=cell.federation.rounds,
                audited=_audited(audits, place, cells),
                caveat=sentence("privacy.caveat"),
            )


def _neighbours(private: Defense) -> str:
    if private.unit == "update":
        replaced = private.gaussian is not None and private.gaussian.reach > 1
        other = "any other update" if replaced else "no update"
        return f"a client's update and {other} in its place"
    return "data sets of a client that differ by one added or removed example"


def _audited(
    rows: Sequence[AuditRow], place: DefenseInSetting, cells: Collection[str]
) -> float | None:
    """The largest epsilon that an audit of these cells has shown."""
    known = [
        row.shown
        for row in rows
        if row.cell in cells
        and (row.defense, row.defense_options) == (place.defense, place.defense_options)
    ]
    return max(known, default=None)
