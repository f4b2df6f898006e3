"""Sentences of an encoder decoded from updates that a defense has blurred."""

from dataclasses import replace

import pytest
import torch

from attacks.base import Job
from attacks.observed.prior import prior_guess
from attacks.observed.readings import read
from attacks.proofs.gradient_match import GradientMatcher
from attacks.span.decoding import LikelihoodSearch
from attacks.span.encoder.joint_words import JointWords
from attacks.span.encoder.proposals import PositionScores
from attacks.span.encoder.word_search import exchanged
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.soft_traces import soft_traces
from fedsim.knowledge import Knowledge
from fedsim.tasks.text import TextTask
from fedsim.types import Batch
from tests.attacks.victims import Victim, lines

FROZEN: dict[str, object] = {"name": "freeze_embeddings", "position": True}
SIGNS: dict[str, object] = {"name": "sign"}
NOISE: dict[str, object] = {"name": "gaussian_noise", "std": 1e-8}


def decoded(victim: Victim, rows: list[int], *defenses: dict[str, object]) -> tuple[Batch, Batch]:
    seen, truth = victim.capture(rows, FROZEN, *defenses)
    task = victim.task
    assert isinstance(task, TextTask)
    lengths = tuple(sorted(map(len, lines(truth)))) if len(rows) > 1 else None
    seen = replace(seen, knowledge=Knowledge(num_examples=len(rows), lengths=lengths))
    model = AttackedModel.of(seen, task)
    guess = LikelihoodSearch(model, torch.Generator().manual_seed(0), Job()).run()
    assert guess is not None
    return guess.guess, truth


@pytest.mark.some(2)
@pytest.mark.parametrize(("row", "defenses"), [(3, ()), (17, (NOISE,))])
def test_a_sentence(bert: Victim, row: int, defenses: tuple[dict[str, object], ...]) -> None:
    """Its words alone: rounding decides which class is likelier, the wrong one for most rows."""
    guess, truth = decoded(bert, [row], *defenses)
    assert lines(guess) == lines(truth)


@pytest.mark.slow
def test_words_and_class_of_signs(bert: Victim) -> None:
    guess, truth = decoded(bert, [17], SIGNS)
    words, private = (set(lines(batch)[0][1:-1]) for batch in (guess, truth))
    # None of 18 random words of a vocabulary of 2000 would be among them.
    assert len(words & private) >= 4
    assert guess.labels.tolist() == truth.labels.tolist()


@pytest.mark.slow
def test_as_many_sentences_as_the_batch_has(bert: Victim) -> None:
    guess, truth = decoded(bert, [3, 4])
    assert len(guess) == 2
    words, private = ({w for line in lines(batch) for w in line} for batch in (guess, truth))
    assert len(words & private) >= 10


def joint_words(bert: Victim, rows: list[int]) -> tuple[JointWords, list[torch.Tensor]]:
    seen, truth = bert.capture(rows, FROZEN)
    task = bert.task
    assert isinstance(task, TextTask)
    traces = soft_traces(AttackedModel.of(seen, task))
    ends = torch.tensor([lines(truth)[0][0], lines(truth)[0][-1]])
    return JointWords.of(traces, ends, len(rows)), [torch.tensor(line) for line in lines(truth)]


def test_given_the_other_words_each_word_adds_most_energy(bert: Victim) -> None:
    joint, (line,) = joint_words(bert, [17])
    assert joint.rivals(line, 1)[1:-1, 0].tolist() == line[1:-1].tolist()
    false = line.clone()
    false[[2, 3]] = line[[3, 2]]
    assert torch.equal(joint.best([false, line], 1)[0], line)
    false[1] = joint.tokens[joint.tokens != line[1]][0]
    assert torch.equal(joint.settled(false), line)


def test_lines_may_hold_words_that_are_not_tried(bert: Victim) -> None:
    """A sentence may come from another shortlist: that of what other sentences leave."""
    joint, (line,) = joint_words(bert, [17])
    missing = [token for token in range(5, 2000) if token not in set(joint.tokens.tolist())]
    for strange in (missing[0], missing[-1], 10**6):
        odd = line.clone()
        odd[2] = strange
        assert torch.equal(joint.settled(odd), line)
        assert joint.rivals(odd, 1)[2, 0] == line[2]
        (swapped,) = joint.exchanges(odd, 1)
        assert sorted(swapped.tolist()) == sorted(odd.tolist())


def test_sentences_already_found_are_taken_into_account(bert: Victim) -> None:
    joint, (one, two) = joint_words(bert, [3, 4])
    part, both = (one.energies(joint.index(two)[None]) for one in (joint, joint.beside([one])))
    assert float(both) == pytest.approx(1, abs=1e-3)
    assert float(part) < 0.99
    moved = [(one[:-1], torch.cat([two[:1], two])), (one, two)]
    assert torch.equal(joint.best_batches(moved, 1)[0][1], two)


def test_a_gradient_beside_others_is_that_of_the_whole_batch(bert: Victim) -> None:
    seen, truth = bert.capture([3, 4], FROZEN)
    task = bert.task
    assert isinstance(task, TextTask)
    assert truth.mask is not None
    for signs in (False, True):
        match = GradientMatcher.of(seen, task, torch.device("cpu"), signs=signs)
        whole = match.of_batches(truth.inputs[None], truth.labels[None], truth.mask[None])
        rest = match.gradient(torch.tensor(lines(truth)[1]), int(truth.labels[1]))
        one = torch.tensor(lines(truth)[0])[None, None]
        beside = match.beside(rest)
        part = match.of_batches(one, truth.labels[None, :1], torch.ones_like(one), beside)
        assert torch.allclose(whole, part, rtol=1e-4)


def test_every_measure_prefers_the_truth(bert: Victim) -> None:
    seen, truth = bert.capture([5], FROZEN)
    task = bert.task
    assert isinstance(task, TextTask)
    false = truth.inputs.clone()
    false[0, 1] = (false[0, 1] + 1) % 20 + 5
    both = torch.cat([truth.inputs, false])
    for signs in (False, True):
        match = GradientMatcher.of(seen, task, torch.device("cpu"), signs=signs)
        own, other = match.similarity(both, truth.labels.expand(2)).tolist()
        assert own > other


def test_a_wrong_class_has_a_negative_scale(bert: Victim) -> None:
    seen, truth = bert.capture([3, 4], FROZEN)
    task = bert.task
    assert isinstance(task, TextTask)
    assert truth.mask is not None
    assert task.spec.num_classes == 2
    match = GradientMatcher.of(seen, task, torch.device("cpu"), signs=False)
    ways = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    batches = [part.expand(4, *part.shape) for part in (truth.inputs, truth.mask)]
    either, own = (
        one.of_batches(batches[0], ways, batches[1]) for one in (match, match.positive())
    )
    assert torch.allclose(either, either[0], rtol=1e-3)
    assert torch.equal(ways[own.argmax()], truth.labels)
    assert float(own.sort().values[-2]) < 0.9995 * float(own.max())


@pytest.mark.slow
def test_where_noise_hides_all_the_guess_is_the_prior(bert: Victim) -> None:
    task, prior = bert.task, bert.capture([20, 21, 22])[1]
    assert isinstance(task, TextTask)
    job = Job(auxiliary=lambda: prior)
    for std, hidden in ((10.0, True), (1e-8, False)):
        seen, _ = bert.capture([3], {"name": "gaussian_noise", "std": std})
        knowledge = Knowledge(num_examples=1, auxiliary=True)
        seen = replace(seen, knowledge=knowledge)
        model = AttackedModel.of(seen, task)
        guess = LikelihoodSearch(model, torch.Generator().manual_seed(0), job).run()
        assert guess is not None
        assert ("the most frequent words" in (guess.note or "")) == hidden
        same = torch.equal(guess.guess.inputs, prior_guess(seen, task, job).inputs)
        assert same == hidden


def test_the_place_of_a_token_is_where_it_is_nearer_than_elsewhere() -> None:
    # Token 2 is nearest everywhere, and token 3 nearer at place 1 than at place 2.
    statistics = torch.full((4, 6), 9.0)
    statistics[:, 2] = torch.tensor([1.0, 1.0, 0.5, 1.0])
    statistics[:, 3] = torch.tensor([2.0, 1.2, 2.0, 2.0])
    statistics[:, 5] = torch.tensor([5.0, 5.0, 5.0, 3.0])
    places = PositionScores(statistics, 4, 5)
    assert places.starts(4).tolist() == [[4, 3, 2, 5], [4, 2, 2, 5]]
    assert places.lengths([2, 3, 4], 1) == [4]


def test_int8_of_a_heavy_tail_is_not_read_as_signs() -> None:
    value = torch.randint(-1, 2, (40, 40), generator=torch.Generator().manual_seed(0)).float()
    value[0, 0] = 127.0
    assert read(value).complete


@pytest.mark.parametrize("true", [[1, 4, 6], [2, 2, 7]])
def test_gradients_are_exchanged_until_their_sum_is_that_of_the_batch(true: list[int]) -> None:
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(10, 40, generator=rng, dtype=torch.float64) + 1
    update = rows[true].sum(0) + 0.1 * torch.randn(40, generator=rng, dtype=torch.float64)
    batch, cosine = exchanged([0, 0, 0], rows @ rows.T, rows @ update)
    assert sorted(batch) == true
    assert cosine == pytest.approx(float(update @ rows[true].sum(0) / rows[true].sum(0).norm()))
