"""Gradients of a few parameters as candidates share them, and sentences grown by these alone."""

from typing import Any

import pytest
import torch

from attacks.base import Job
from attacks.proofs.gradient_match import GradientMatcher
from attacks.span.span import Span
from attacks.tokens.attacked_model import AttackedModel
from fedsim.config.cell import TaskConfig
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch
from tests.tasks.cases import TEXTS

TABLES: dict[str, dict[str, Any]] = {
    "virtual tokens": {"adapters": "prompt"},
    "factors of IA3": {"adapters": "ia3"},
    "biases": {"trained": ("*bias",)},
}
OTHERS = {"p-tuning": {"adapters": "p-tuning"}, "prefix": {"adapters": "prefix"}}


def tuned(model: str, table: dict[str, Any]) -> tuple[TextTask, Batch, Observation]:
    """A batch of one text, and what a client sends of it after its parameters moved."""
    if "adapters" in table:
        pytest.importorskip("peft", minversion="0.12", reason="older ones lack some of these")
    config = TaskConfig.model_validate({"model": model, "dataset": "here", **table})
    task = make_task(config, TEXTS)
    assert isinstance(task, TextTask)
    weights, rng = initial_weights(task, config, 0), torch.Generator().manual_seed(0)
    network = task.model(weights)
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            weights[name] += 0.1 * torch.randn(parameter.shape, generator=rng)
    batch = task.encode(TEXTS.take([0]))
    gradient = task.gradient(task.model(weights), batch)
    key, known = CaptureKey(round=1, client=0), Knowledge(num_examples=1, local_steps=1)
    return task, batch, Observation(key, weights, gradient, "gradient", known)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", [*TABLES, *OTHERS])
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-bert"])
def test_candidates_share_the_gradient_of_what_was_sent(model: str, name: str) -> None:
    task, batch, seen = tuned(model, TABLES.get(name) or OTHERS[name])
    match = GradientMatcher.of(seen, task, torch.device("cpu"), signs=False)
    alive = {k for k, v in seen.received.items() if float(v.abs().max()) > 1e-6}
    assert match.factored.names == alive
    other = batch.inputs.roll(1, 1)
    lines = torch.cat([batch.inputs, other])
    labels = lines if model == "tiny-gpt2" else batch.labels.repeat(2)
    found, wrong = match.similarity(lines, labels).tolist()
    whole = sum(float(v.square().sum()) for v in seen.received.values()) ** 0.5
    assert found == pytest.approx(whole, rel=1e-4)
    assert wrong < found


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_what_was_sent_is_named(name: str) -> None:
    task, _, seen = tuned("tiny-gpt2", TABLES[name])
    rng, job = torch.Generator().manual_seed(0), Job(torch.device("cpu"))
    guess = Span(work=3000).guess(seen, task, rng, job)
    assert name in guess.note
    task, _, seen = tuned("tiny-bert", TABLES[name])
    with pytest.raises(CannotAttack, match=f"{name}.* hold the inputs of no layer"):
        Span().guess(seen, task, rng, job)


def test_heads_and_norms_hold_no_words_and_weights_may() -> None:
    for patterns, said in (
        (("classifier*",), "the head"),
        (("*LayerNorm.weight",), "norms"),
        (("*LayerNorm*",), "biases and norms"),
        (("*query.weight", "classifier*"), ""),
        (("*word_embeddings.weight",), ""),
    ):
        task, _, seen = tuned("tiny-bert", {"trained": patterns})
        assert seen.received.keys() == {
            k for k, p in task.build().named_parameters() if p.requires_grad
        }
        assert AttackedModel.of(seen, task).unspanned == said


def test_the_lengths_of_dora_are_no_layer_of_gpt2() -> None:
    task, batch, seen = tuned("tiny-gpt2", {"adapters": "dora"})
    guess = Span(work=3000).guess(
        seen, task, torch.Generator().manual_seed(0), Job(torch.device("cpu"))
    )
    assert guess.guess.inputs.shape[0] == len(batch)
    match = GradientMatcher.of(seen, task, torch.device("cpu"), signs=False)
    assert match.each_of(match.update).unexplained(batch) == 1
