"""Epsilon in words: both relations of neighbours, wherever it stands."""

from typing import ClassVar

import pytest

from experiments.bounds.claimed import Bounds
from experiments.decision.answer import FamilyAnswer, Tried
from experiments.decision.wording import outcome
from experiments.report.pareto import _spot
from experiments.report.result_tables import _utility
from experiments.report.tables import Number
from experiments.wording.epsilons import Epsilons
from fedsim.accountant import Schedule
from fedsim.defenses import build_chain
from fedsim.defenses.base import Defense
from fedsim.defenses.chain import Chain
from tests.experiments.report.cases import section, verdict

RUN = Schedule(0.1, 20, 20)
BOTH = Epsilons(epsilon=22.19, add_or_remove=9.172, replace=22.19, rate=1.0, delta=1e-5)


class Own(Defense):
    """A plug-in's defense, which states a number alone."""

    name: ClassVar[str] = "own"

    def epsilon_after(self, spent: Schedule) -> float:
        return 3.0 * spent.rounds / 20


@pytest.mark.parametrize(
    ("table", "relation"),
    [
        ({"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}, "add_or_remove"),
        ({"name": "dp_client", "clip": 1.0, "noise_multiplier": 9.0}, "replace"),
        (
            {"name": "dp_client", "clip": 1.0, "noise_multiplier": 9.0, "adjacency": "zero_out"},
            "add_or_remove",
        ),
    ],
)
def test_what_is_claimed_is_by_one_of_both_relations(
    table: dict[str, object], relation: str
) -> None:
    spent = Epsilons.after(build_chain((table,), "defense"), RUN)
    assert spent is not None
    assert spent.epsilon == pytest.approx(getattr(spent, relation))
    assert (spent.add_or_remove or 0.0) < (spent.replace or 0.0)


def test_a_claim_without_a_mechanism_names_no_relation() -> None:
    spent = Epsilons.after(Chain(("own",), (Own(),)), RUN)
    assert str(spent) == "epsilon 3 (as it claims), of one run"
    assert Epsilons.after(build_chain((), "defense"), RUN) is None


def test_a_table_has_a_column_for_each_relation() -> None:
    private = verdict("no leak found", "dp_client")
    known = section(private, seeds={"dp_client": {0: 0.5}})
    end = known.utility[0].model_copy(update={"spent": BOTH})
    (row,) = _utility(known.model_copy(update={"utility": (end,)}))
    assert row["epsilon claimed"] == row["epsilon, replace one"] == Number(22.19)
    assert row["epsilon, add or remove one"] == Number(9.172)


def test_a_mark_of_the_picture_has_both() -> None:
    private = verdict("no leak found", "dp_client")
    known = section(private, seeds={"dp_client": {0: 0.5, 1: 0.6}})
    end = known.utility[0].model_copy(update={"spent": BOTH})
    spot = _spot(known.model_copy(update={"utility": (end,)}), private)
    assert spot is not None
    assert spot.label.endswith(f", ε = {BOTH.both}")


def test_a_line_of_an_audit_has_both() -> None:
    row = Bounds(
        releases=4,
        canaries=99,
        at_least=1.0,
        any_mechanism=0.5,
        claimed=8.0,
        at_most=BOTH,
        shift=1.0,
    )
    assert "at most 9.17 (add or remove one) and 22.2 (replace one);" in row.text("replies")


def test_a_calibration_says_what_its_answer_spends() -> None:
    tried = Tried(name="DP-SGD (clip=1, ε=8)", index=1, value=8.0, word="holds")
    family = FamilyAnswer(
        title="DP-SGD (clip=1)",
        option="epsilon",
        values=(16.0, 8.0),
        outcome="holds",
        tried=(tried,),
        chosen=1,
        defense=None,
        epsilon=str(BOTH),
    )
    assert outcome(family).endswith(f"({BOTH})")
