"""The tables of leakage at a loss of utility, and compared with DP-SGD of equal utility."""

from __future__ import annotations

from experiments.analysis.findings import TaskFindings
from experiments.report.naming import named_place, place_of, unit_of_main
from experiments.report.numbers import number
from experiments.report.tables import Number, Table
from experiments.wording.defense_names import family
from experiments.wording.names import title


def tradeoff_tables(section: TaskFindings) -> tuple[Table, Table]:
    """Leakage at a stated loss of utility, and compared with DP-SGD of equal utility."""
    where, unit, evidence = place_of(section), unit_of_main(section), section.evidence
    loss = f"{100 * evidence.at_loss[0].loss:g} %" if evidence.at_loss else "a stated share"
    return (
        Table(
            "at-loss",
            f"The least leakage of each family of defenses that costs at most {loss} of the "
            f"utility without a defense: mean {title(section.main)} of the strongest attack. A "
            "value between two members of the family is interpolated linearly; no such setting was "
            "run. The interval takes utility as known and ignores that the member was chosen on "
            f"the same victims: {where}.",
            ("setting", "defense", "leakage", "victims", "how"),
            tuple(
                (
                    *(row.setting, family(row.defense)),
                    number(section, row.leakage),
                    row.leakage.n if row.leakage else None,
                    row.how,
                )
                for row in evidence.at_loss
            ),
        ),
        Table(
            "equal-utility",
            "Each defense compared with DP-SGD of the same utility, both under the strongest "
            "attack on them and on the same victims. DP-SGD is interpolated between its settings, "
            "with no defense as the weakest one and without those that another setting beats in "
            "both leakage and utility. The intervals hold at 95 % each and ignore that attacks and "
            f"settings were chosen on the same victims. Above 0, DP-SGD leaks less: {where}.",
            ("setting", "defense", "leakage", "DP-SGD", "defense less DP-SGD", "victims", "how"),
            tuple(
                (
                    *named_place(row.place),
                    None if row.leakage is None else Number(row.leakage, unit),
                    None if row.dp_sgd is None else Number(row.dp_sgd, unit),
                    number(section, row.difference),
                    row.difference.n if row.difference else None,
                    row.how,
                )
                for row in evidence.equal_utility
            ),
        ),
    )
