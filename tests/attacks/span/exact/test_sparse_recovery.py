"""Words from adapters of a smaller rank than a batch has words."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from attacks.base import Job, Reconstruction
from attacks.span.exact.sparse_recovery import NOTE, SparseRecovery
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.layout import batch_of
from attacks.tokens.pursuit import Pursuit, few_rows
from fedsim.models.adapters import is_second_factor
from fedsim.tasks.text import TextTask
from tests.attacks.adapted import adapted, dictionary, run, sentences
from tests.attacks.victims import hub, lines


def test_what_is_not_read_of_a_batch_is_a_blind_guess() -> None:
    victim = adapted("tiny-gpt2", 5, 1, max_length=14)
    seen, truth = victim.capture([0, 1, 2])
    public = seen.knowledge.model_copy(update={"auxiliary": True})
    seen = replace(seen, knowledge=public)
    assert isinstance(victim.task, TextTask)
    model = AttackedModel.of(seen, victim.task, victim.task.model(seen.sent))
    job = Job(auxiliary=lambda: victim.task.encode(victim.rows.take(range(20, 40))))
    search = SparseRecovery(model, torch.Generator(), job)
    (line, *_) = lines(truth)
    guess = search.completed(Reconstruction(batch_of([line], victim.task, [-1])))
    assert len(guess.guess) == 3
    assert lines(guess.guess)[0] == line
    assert all(len(each) > 2 for each in lines(guess.guess))
    assert guess.note.endswith("1 of 3 sentences read, the others are the most frequent words")
    assert guess.confidence == ("guess",) * 3


MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def space(rows: torch.Tensor, rank: int) -> torch.Tensor:
    mixed = torch.randn(rank, len(rows), generator=torch.Generator().manual_seed(1)) @ rows
    basis: torch.Tensor = torch.linalg.qr(mixed.double().T).Q
    return basis


@pytest.mark.parametrize(("true", "rank"), [(12, 2), (20, 4), (36, 16)])
def test_few_rows_are_found_from_fewer_combinations(true: int, rank: int) -> None:
    atoms = dictionary(2000, 64)
    found = few_rows(space(atoms[:true], rank), atoms, Job())
    assert found is not None
    assert set(found) == set(range(true))


def test_many_rows_are_not() -> None:
    atoms = dictionary(500, 32)
    assert few_rows(space(atoms[:28], 4), atoms, Job()) is None


def test_a_pursuit_is_done_with_the_true_rows_alone() -> None:
    atoms = dictionary(40, 32)
    begun = Pursuit.of(space(atoms[:10], 4)).plus(atoms[:9])
    assert not begun.done
    assert begun.plus(atoms[9:10]).done
    assert not begun.plus(atoms[10:11]).done
    assert float(begun.shares(atoms[:12], begun.directions)[9]) > 0.999
    assert float(begun.shares(atoms[:1], begun.directions)[0]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("row", [0, 1])
def test_a_sentence_has_more_tokens_than_the_adapters_have_rank(row: int) -> None:
    victim = adapted("tiny-gpt2", 5, 20, max_length=14)
    seen, truth = victim.capture([row])
    guess = run(victim, seen)
    assert sentences(guess.guess) == sentences(truth)
    assert (guess.confidence, guess.note) == (("certified",), NOTE)
    adam = replace(seen, knowledge=seen.knowledge.model_copy(update={"optimizer": "adamw"}))
    assert run(victim, adam).note != NOTE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data", "rows", "least"),
    [
        ("fedsim/llama-8k", "film/enron-sentences", [3], 1),
        pytest.param(
            "fedsim/llama-8k", "film/enron-sentences", range(6), 3, marks=pytest.mark.slow
        ),
        pytest.param(MINILM, "nyu-mll/glue:cola", range(6), 4, marks=pytest.mark.slow),
    ],
)
def test_adapters_of_rank_four_tell_sentences(
    model: str, data: str, rows: Sequence[int], least: int
) -> None:
    split = "validation[:8]"
    victim = hub(model, data, split, lora_rank=4, max_length=32)
    rng = torch.Generator().manual_seed(0)
    for name, value in victim.sent.items():
        if is_second_factor(name):  # as after a round: at first B is 0, and shows nothing of A
            value.copy_(0.01 * torch.randn(value.shape, generator=rng))
    proven = 0
    for row in rows:
        seen, truth = victim.capture([row])
        assert truth.inputs.shape[1] > 2 * 4
        guess = run(victim, seen)
        if guess.confidence == ("certified",):
            assert guess.note == NOTE
            assert sentences(guess.guess) == sentences(truth)
            proven += 1
    assert proven >= least


@pytest.mark.slow
def test_contexts_are_no_longer_than_sentences_may_be() -> None:
    victim = adapted("tiny-gpt2", 5, 20, max_length=14)  # shorter than most random contexts
    seen, truth = victim.capture([3, 4])
    assert len(run(victim, seen).guess) == len(truth)
