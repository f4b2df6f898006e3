"""The largest and the smallest are left out."""

import pytest
import torch

from fedsim.defenses.prune import DualPrune
from tests.defenses.cases import rng


def test_dual_pruning_leaves_out_the_largest_and_the_smallest() -> None:
    values = torch.tensor([[4.0, -1.0, 0.5, -8.0], [2.0, 3.0, 0.1, -6.0]])
    sent = DualPrune(largest=0.25, smallest=0.5).on_update({"a": values}, rng())["a"]
    assert sent.tolist() == [[4.0, 0.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0]]
    assert torch.equal(DualPrune(largest=0, smallest=0).surrogate({"a": values})["a"], values)
    short = torch.tensor([2.0, -1.0])
    assert DualPrune().surrogate({"a": short})["a"].tolist() == [2.0, 0.0]
    with pytest.raises(ValueError, match="nothing to send"):
        DualPrune(largest=0.3, smallest=0.7)
