"""The choice of the token behind each line."""

from typing import Any, cast

from attacks.proofs.certificate import MatchedBatch, Prover
from attacks.proofs.last_tokens import _chosen
from attacks.proofs.verdict import Proof

ERRORS = {(3, 3): 0.5, (1, 3): 0.3, (1, 1): 0.2, (2, 1): 0.0}
"""Of the last tokens of two lines. From (3, 3), the first line's best is 1, which is wrong."""


class Table:
    """A prover that knows the error of each pair of last tokens."""

    def compare(self, lines: list[tuple[int, ...]], labels: Any) -> MatchedBatch:
        error = ERRORS.get((lines[0][-1], lines[1][-1]), 0.55)
        return MatchedBatch(lines, labels, Proof(error, bound=1e-4))


def test_a_token_chosen_beside_a_wrong_one_is_chosen_again() -> None:
    match = _chosen(cast(Prover, Table()), [(7,), (8,)], [(2, 1, 3), (2, 1, 3)])
    assert match.lines == [(7, 2), (8, 1)]
    assert match.proof.holds


def test_the_best_is_kept_where_none_holds() -> None:
    match = _chosen(cast(Prover, Table()), [(7,), (8,)], [(1, 3), (2, 3)])
    assert match.lines == [(7, 1), (8, 3)]
    assert not match.proof.holds
