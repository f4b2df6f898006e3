"""L-BFGS without waits takes the steps of torch's."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attacks.engine.descent import LBFGS

Value = Callable[[Tensor, Tensor], Tensor]
TABLE = torch.randn(40, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
VALUES: dict[str, Value] = {
    "a valley": lambda x, y: (TABLE @ x.tanh()).sub(1).square().mean() + y.square().mean(),
    "a hill, whose pairs are not kept": lambda x, y: x.cos().sum() - y.square().sum(),
    "a pole": lambda x, y: x.log().sum() + y.sum(),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_steps_are_those_of_torch(name: str) -> None:
    start = torch.linspace(0.1, 0.9, 12, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    theirs, ours = ([part.clone().requires_grad_() for part in start] for _ in range(2))

    def evaluated(point: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        value = VALUES[name](*point)
        return value.detach(), torch.autograd.grad(value, point)

    def closure() -> Tensor:
        value, (theirs[0].grad, theirs[1].grad) = evaluated(theirs)
        return value

    usual = torch.optim.LBFGS(
        theirs, max_iter=5, history_size=4, tolerance_grad=0, tolerance_change=0
    )
    lbfgs = LBFGS(ours, lambda: evaluated(ours), iterations=5, history=4)
    for _ in range(4):
        expected: Tensor = usual.step(closure)
        torch.testing.assert_close(lbfgs.step(), expected, rtol=1e-6, atol=1e-9, equal_nan=True)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9, equal_nan=True)
