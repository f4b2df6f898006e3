"""Products of the gradients of lines."""

import torch

from attacks.observed.factored import Vectors
from attacks.proofs.line_gradients import entries, products


def test_a_layer_of_which_pruning_sent_nothing_adds_nothing() -> None:
    group = Vectors(("bias",), torch.ones(1, 6, 4))
    assert products(group, 0, 2).tolist() == [[[4.0] * 3] * 3] * 2
    nothing = entries(group, 0, torch.zeros(4, dtype=torch.bool))
    assert products(nothing, 0, 2).tolist() == [[[0.0] * 3] * 3] * 2
