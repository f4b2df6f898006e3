"""The defenses of a task in a table of few columns; the matrix says all there is to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.analysis.evidence import Verdict
from experiments.analysis.findings import TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.report.beyond import Told, told_of
from experiments.report.brackets import Bracket
from experiments.report.reasons import phrases
from experiments.report.statements import word_of
from experiments.report.tables import Table, Value
from experiments.report.verdict_tables import null_of, number, reached, useful
from experiments.wording.defense_names import defense_name
from experiments.wording.names import title


def defense_table(
    section: TaskFindings,
    told: Sequence[Told],
    brackets: Mapping[DefenseInSetting, Bracket],
) -> Table:
    """One row a defense and setting: verdict, leakage, blind guess, utility, members, victims."""
    return Table(
        "defenses",
        f"Each defense under the strongest attack on it: mean {title(section.main)} with its 95 % "
        "interval.",
        (
            *("setting", "defense", "verdict", "severity", "why", "clients verbatim"),
            *("strongest attack", "metric", "leakage"),
            *("blind guess", "lead over it", "utility metric", "utility", "utility change"),
            *("victims", "clients", "AUC of membership", "epsilon audited"),
            *("leaks", "bounded by"),
        ),
        tuple(
            _row(section, verdict, told_of(told, verdict.place), brackets.get(verdict.place))
            for verdict in section.evidence.verdicts
        ),
    )


def _row(
    section: TaskFindings, verdict: Verdict, told: Told | None, bracket: Bracket | None
) -> tuple[Value, ...]:
    attack, leaked = reached(section, verdict.strongest)
    measure, change, _ = useful(section, verdict.place)
    return (
        verdict.setting,
        defense_name(verdict.defense, verdict.defense_options),
        word_of(section, verdict),
        verdict.grade,
        "; ".join(phrases(section, verdict)),
        verdict.verbatim.hit,
        attack,
        title(section.main),
        leaked,
        null_of(section, verdict, verdict.null) if verdict.null else None,
        number(section, verdict.over_null),
        title(section.utility_name or ""),
        measure,
        change,
        verdict.victims,
        verdict.clients,
        told.members if told else None,
        told.epsilon if told else None,
        bracket.said if bracket else None,
        bracket.why if bracket else None,
    )
