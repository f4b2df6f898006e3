"""Each supported architecture: what the table says of it, and what the attacks make of it."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from attacks.observed.word_rows import is_tied
from attacks.span.span import Span
from benchmarks.bench_families import attacked, family_table, oracle
from benchmarks.family_cases import SHAPES, FamilyCase
from fedsim.models.embeddings import embedding_names
from fedsim.models.families import FAMILIES
from fedsim.models.layers import is_norm

REFUSALS = {
    "albert": {"span, LoRA r = 64": "has no linear layers before and after an attention"},
}
"""Attacks that cannot work on an architecture, with a part of the reason that they give."""

every = pytest.mark.parametrize("family", FAMILIES)


def test_every_family_has_a_shape() -> None:
    assert set(SHAPES) == set(FAMILIES)


@pytest.mark.some(3)
@every
def test_the_table_says_what_the_network_is(family: str) -> None:
    case, facts = FamilyCase.of(family), FAMILIES[family]
    network: Any = case.task.model(case.sent)
    norms = {type(part).__name__.endswith("RMSNorm") for part in network.modules() if is_norm(part)}
    assert norms == {facts.norm == "rms"}
    table = embedding_names(network).position is not None
    assert table == (facts.positions == "learned" or family == "mpnet")
    words = network.get_input_embeddings()
    plain = torch.equal(words(torch.arange(9)), words.weight[:9])
    later = int(transformers.__version__.split(".")[0]) < 5 and family in {"gemma", "gemma2"}
    assert plain == (not facts.scaled or later)
    names = [name for name, _ in network.named_modules()]
    assert any("gate_proj" in name for name in names) == facts.gated
    assert is_tied(network) == (facts.tied and "language-modelling" in facts.kinds)
    blocks = next(part for part in network.modules() if isinstance(part, nn.ModuleList))
    assert (len(blocks) < SHAPES[family].get("num_hidden_layers", 0)) == facts.shared
    assert normalises_last(network, blocks[0]) == (not facts.first)


def normalises_last(network: nn.Module, block: nn.Module) -> bool:
    """Whether the outputs of a block have a variance of one."""
    seen: list[Tensor] = []

    def note(module: nn.Module, inputs: object, output: Any) -> None:
        seen.append(output if isinstance(output, Tensor) else output[0])

    handle = block.register_forward_hook(note)
    ids = torch.tensor([[5, 6, 7, 8]])
    network(input_ids=ids, attention_mask=torch.ones_like(ids))
    handle.remove()
    spread = seen[0].std(-1, correction=0)
    return bool((spread - 1).abs().max() < 0.01)


@pytest.mark.some(9)
@every
def test_the_factored_gradient_is_that_of_autograd(family: str) -> None:
    row = oracle(FamilyCase.of(family))
    assert row.error is not None
    assert row.error < 1e-4
    assert row.share is not None
    # Tables of distances, and DeBERTa's layers that read them, are left out.
    assert row.share > (0.9 if FAMILIES[family].positions == "relative" else 0.9999)


@pytest.mark.some(9)
@pytest.mark.parametrize("family", [name for name in FAMILIES if "deberta" not in name])
@pytest.mark.parametrize("frozen", [pytest.param(False, marks=pytest.mark.slow), True])
def test_four_sentences_are_certified(family: str, frozen: bool) -> None:
    row = attacked(FamilyCase.of(family), Span(), 4, "span", frozen=frozen)
    assert (row.exact, row.certified) == (4, 4)


@pytest.mark.slow
@every
def test_every_attack_works_or_says_why_not(family: str) -> None:
    refusals = dict(REFUSALS.get(family, {}))
    if "language-modelling" not in FAMILIES[family].kinds:
        refusals["film with spans"] = "predicts no next token"
    for row in family_table((family,)):
        if row.reason or row.attack in refusals:
            assert refusals[row.attack] in row.reason
        elif row.exact is not None and not row.unfinished:  # as by the clock for DeBERTa
            assert (row.exact, row.certified) == (row.sentences, row.sentences)
