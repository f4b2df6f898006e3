"""The search for sentences in exact spans, and what it does not compute."""

from __future__ import annotations

import pytest
import torch

from attacks.base import Job
from attacks.span.span import Span
from attacks.tokens.layout import Layout
from tests.attacks.victims import lines, trained


def test_no_other_layout_is_sought_where_the_usual_one_explains_the_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sought(*given: object, learned: bool) -> list[Layout]:
        raise AssertionError(f"another layout was sought: {given}, {learned}")

    for layouts in ("trailing_layouts", "left_layouts"):
        monkeypatch.setattr(f"attacks.span.exact.search.{layouts}", sought)
    victim = trained("tiny-gpt2", 20)
    seen, truth = victim.capture([1])
    (guess,) = Span().reconstruct([seen], victim.task, [torch.Generator()], Job())
    assert guess.proven
    assert lines(guess.guess) == lines(truth)
