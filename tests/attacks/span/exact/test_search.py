"""The search for sentences in exact spans, and what it does not compute."""

import pytest
import torch

import fedsim
from attacks.base import Job
from attacks.span.span import Span
from attacks.tokens.layout import Layout
from tests.attacks.victims import hub, lines, trained


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


def test_a_text_of_few_different_tokens_is_told_from_its_neighbours() -> None:
    """A Cyrillic text in bytes: below the lowest limit strays lie in the span, too."""
    victim = hub("fedsim/llama-8k", "sentences", "train[:2]")
    text = "Мы встречаемся в пятницу в десять"
    tokenizer = victim.task.tokenizer  # type: ignore[attr-defined]
    network, ids = victim.task.model(victim.sent).eval(), torch.tensor([tokenizer(text).input_ids])
    loss = network(input_ids=ids, labels=ids).loss
    slopes = torch.autograd.grad(loss, list(network.parameters()))
    update = fedsim.Update.of(network, gradients=list(slopes), tokenizer=tokenizer)
    guess = fedsim.attack(update, "span", quiet=True)
    assert guess.certified == (True,)
    assert fedsim.score(guess, [text]).mean("exact_match") == 1
