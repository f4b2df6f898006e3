"""Cards of differential privacy: what is protected from whom, how much is claimed and audited."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from experiments.analysis.findings import TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.bounds.audit import AuditRecord, AuditRow
from experiments.dossier.record import PrivacyCard
from experiments.plan.folder import Run
from experiments.report.naming import named_place
from experiments.report.numbers import useful
from fedsim.defenses import build_chain
from fedsim.defenses.base import Defense
from fedsim.files import read_record

_CAVEAT = (
    "The noise is float32 from a seeded generator, which serves to measure leakage, not to keep "
    "secrets. Epsilon of dp_sgd assumes Poisson sampling, and clients shuffle. Choosing among runs "
    "by their results is not counted."
)


def privacy_cards(run: Run, sections: Sequence[TaskFindings]) -> Iterator[PrivacyCard]:
    """A card for each defense that claims an epsilon."""
    path = run.root / "audit.json"
    audits = read_record(path, AuditRecord).rows if path.exists() else ()
    configs = {cell.name: cell.config for cell in run.cells}
    for section in sections:
        for place in dict.fromkeys(one.place for one in section.utility):
            cells = [n for n, own in section.by_cell.items() if own == place] or section.cells
            cell = next(configs[name] for name in cells)
            chain = build_chain(cell.defense, "defense")
            claimed = useful(section, place)[2]
            if chain.unit is None or claimed is None:
                continue
            setting, name = named_place(place)
            private = next(defense for defense in chain.defenses if defense.unit is not None)
            yield PrivacyCard(
                setting=setting,
                defense=name,
                unit="one example of a client"
                if chain.unit == "example"
                else "everything that a client sends in a round",
                neighbours=_neighbours(private),
                trust="local: each client adds its own noise, and the server need not be trusted",
                mechanism="clipping and Gaussian noise",
                claimed=claimed.value,
                delta=private.gaussian.delta if private.gaussian else 0.0,
                rounds=cell.federation.rounds,
                audited=_audited(audits, place, cells),
                caveat=_CAVEAT,
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
        max(row.lower, row.any_mechanism)
        for row in rows
        if row.cell in cells
        and (row.defense, row.defense_options) == (place.defense, place.defense_options)
    ]
    return max(known, default=None)
