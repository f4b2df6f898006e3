"""Sentences of an encoder from blurred updates that hold the rows of both embedding tables."""

from dataclasses import replace

import pytest
import torch

from attacks.base import Job
from attacks.proofs.gradient_match import GradientMatcher
from attacks.span.decoding import LikelihoodSearch
from attacks.span.encoder.joint_words import RowView, View
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.table_rows import TableRows, table_rows
from fedsim.knowledge import Knowledge
from fedsim.tasks.text import TextTask
from fedsim.types import Batch
from tests.attacks.victims import PLACE, WORD, Victim, lines

NOISE: dict[str, object] = {"name": "gaussian_noise", "std": 1e-5}
PRUNED: dict[str, object] = {"name": "prune", "fraction": 0.9}
SIGNS: dict[str, object] = {"name": "sign"}
FROZEN: dict[str, object] = {"name": "freeze_embeddings", "position": True}


def rows_of(
    victim: Victim, rows: list[int], *defenses: dict[str, object]
) -> tuple[TableRows | None, Batch]:
    seen, truth = victim.capture(rows, *defenses)
    assert isinstance(victim.task, TextTask)
    return table_rows(AttackedModel.of(seen, victim.task)), truth


@pytest.mark.parametrize("defense", [NOISE, PRUNED, SIGNS])
def test_rows_tell_words_and_their_places(bert: Victim, defense: dict[str, object]) -> None:
    rows, truth = rows_of(bert, [17], defense)
    assert rows is not None
    (line,) = lines(truth)
    tokens = rows.shortlist(1)
    best = tokens[rows.weights(tokens).argmax(1)][: len(line)]
    assert float((best == torch.tensor(line)).double().mean()) > 0.6


def test_no_rows_of_frozen_tables(bert: Victim) -> None:
    assert rows_of(bert, [17], FROZEN)[0] is None


def test_without_a_sentence_its_rows_are_gone(bert: Victim) -> None:
    rows, truth = rows_of(bert, [3, 4])
    alone = [bert.capture([row])[0].received for row in (3, 4)]
    assert rows is not None
    rest = rows.without({name: alone[0][name] / 2 for name in (WORD, PLACE)})
    assert torch.allclose(rest.words, alone[1][WORD] / 2, atol=1e-8)
    tokens, (_, line) = rest.shortlist(1), lines(truth)
    best = tokens[rest.weights(tokens).argmax(1)][: len(line)]
    assert best.tolist() == line


def test_one_part_holds_the_words_of_one_sentence(bert: Victim) -> None:
    del bert
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(2, 64, generator=generator)
    own = torch.randn(20, 64, generator=generator)
    words = torch.cat([shared.repeat_interleave(10, 0) + own, torch.zeros(5, 64)])
    rows = TableRows(words, words[:3], 1e-4, None, torch.arange(3))  # type: ignore[arg-type]
    first = torch.arange(25) < 10
    assert any(torch.equal(part[:20], first[:20]) for part in rows.parts(torch.arange(25)))


def test_a_view_of_one_hot_inputs_is_that_of_dense_ones() -> None:
    generator, tokens, places = torch.Generator().manual_seed(0), 7, 5
    side = torch.randn(tokens + places, 9, generator=generator)
    word = torch.eye(tokens).expand(places, tokens, tokens)
    place = torch.eye(places)[:, None].expand(places, tokens, places)
    dense = View(side @ side.T, torch.cat([word, place], 2))
    sparse = RowView(side @ side.T, tokens)
    others = torch.tensor([0, 1, 3, 1]), torch.tensor([2, 3, 3, 1])
    for where in (1, 2):
        assert torch.allclose(dense.gains(*others, where), sparse.gains(*others, where), atol=1e-4)
    which, own = torch.tensor([2, 10, 19, 24]), torch.tensor([[0, 1, 2], [1, 2, 3]])
    assert torch.allclose(dense.energies(which, own), sparse.energies(which, own))


def test_the_truth_explains_all_entries_that_were_sent(bert: Victim) -> None:
    seen, truth = bert.capture([3, 4], PRUNED)
    task = bert.task
    assert isinstance(task, TextTask)
    assert truth.mask is not None
    match = GradientMatcher.of(seen, task, torch.device("cpu"), signs=False)
    own = match.of_batches(truth.inputs[None], truth.labels[None], truth.mask[None])
    total = sum(float(value.square().sum()) for value in seen.received.values()) ** 0.5
    assert float(own) == pytest.approx(total, rel=1e-3)


def test_pruned_rows_do_not_rule_out_words(bert: Victim) -> None:
    task = bert.task
    assert isinstance(task, TextTask)
    for defenses, whole in (((PRUNED,), True), ((), False)):
        seen, truth = bert.capture([17], *defenses)
        words = AttackedModel.of(seen, task).vocabulary()
        assert (len(words) > 1000) == whole
        assert set(lines(truth)[0]) <= set(words.tolist())


def test_the_rows_that_heavy_pruning_leaves_are_of_the_batch(bert: Victim) -> None:
    seen, truth = bert.capture([3, 17])
    task, network = bert.task, bert.task.model(seen.sent)
    assert isinstance(task, TextTask)
    own = sorted({token for line in lines(truth) for token in line})
    for share, told in ((0.01, True), (0.1, False), (1.0, False)):
        left = {}
        for name, value in seen.received.items():
            edge = value.abs().flatten().quantile(1 - share)
            left[name] = value if name == WORD else value * (value.abs() >= edge)
        model = AttackedModel.of(replace(seen, received=left), task, network)
        found = model.words_of_pruned(4, 48)
        assert (None if found is None else found.tolist()) == (own if told else None)
        assert model.words_of_pruned(4, len(own) - 1) is None


@pytest.mark.slow
def test_a_sentence_under_noise(bert: Victim) -> None:
    seen, truth = bert.capture([17], NOISE)
    task = bert.task
    assert isinstance(task, TextTask)
    (line,) = lines(truth)
    seen = replace(seen, knowledge=Knowledge(num_examples=1, lengths=(len(line),)))
    model = AttackedModel.of(seen, task)
    decoded = LikelihoodSearch(model, torch.Generator().manual_seed(0), Job()).run()
    assert decoded is not None
    right = torch.tensor(lines(decoded.guess)[0]) == torch.tensor(line)
    assert float(right.double().mean()) > 0.8
