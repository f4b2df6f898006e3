"""Single clients' rows from sums whose cohorts overlap."""

from collections.abc import Sequence

import pytest
import torch

from attacks.base import Job
from attacks.disaggregate import Disaggregate
from attacks.membership.membership import Membership
from attacks.observed.first_linear import find_first_linear
from attacks.observed.separated import by_spans, by_updates, by_words
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.models.embeddings import embedding_names
from fedsim.store.capture import CaptureKey, Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.base import Task
from fedsim.types import Batch, Tensors, joined

REDRAWN = [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
FIXED = [REDRAWN[0]] * 3
SIZE = 3
CONFIG = TaskConfig(model="mlp", dataset="shapes", image_size=8)
TEXT = TaskConfig(model="tiny-bert", dataset="sentences")


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task(CONFIG, load_rows("shapes", "train[:12]", modality="image", image_size=8))


@pytest.fixture(scope="module")
def rows(task: Task) -> list[Batch]:
    whole = task.encode(load_rows("shapes", "train[:12]", modality="image", image_size=8))
    return [whole[list(range(SIZE * c, SIZE * c + SIZE))] for c in range(4)]


def _gradient(task: Task, sent: Tensors, batch: Batch) -> Tensors:
    return task.gradient(task.model(sent), batch)


def _sums(
    task: Task,
    rows: Sequence[Batch],
    design: Sequence[Sequence[tuple[int, ...]]],
    rate: float,
    config: TaskConfig = CONFIG,
    size: int = SIZE,
) -> list[Observation]:
    """What the server sees while it trains at this rate."""
    sent, seen = initial_weights(task, config, 0), []
    for round_, cohorts in enumerate(design, 1):
        replies = [_gradient(task, sent, batch) for batch in rows]
        for number, members in enumerate(cohorts):
            total = {k: torch.stack([replies[c][k] for c in members]).mean(0) for k in replies[0]}
            key = CaptureKey(round=round_, client=number)
            known = Knowledge(
                num_examples=size * len(members), all_rows=True, cohort=2, members=members
            )
            seen.append(Observation(key, sent, total, "gradient", known))
        sent = {k: v - rate * torch.stack([r[k] for r in replies]).mean(0) for k, v in sent.items()}
    return seen


def _error(update: Tensors, truth: Tensors) -> float:
    return max(float((update[k] - truth[k]).norm() / truth[k].norm()) for k in update)


def test_spans_separate_clients_while_the_weights_move(task: Task, rows: list[Batch]) -> None:
    sums = _sums(task, rows, REDRAWN, rate=0.5)
    layer = find_first_linear(task.model(sums[0].sent).double(), task, torch.Generator())
    cpu = torch.device("cpu")
    assert by_spans(sums[:2], layer, cpu) == {}
    found = by_spans(sums[:4], layer, cpu)
    assert found.keys() == {0, 1, 2, 3}
    for client, one in found.items():
        truth = _gradient(task, one.sent, rows[client])
        assert one.knowledge.num_examples == SIZE
        assert _error(one.update(), truth) < 1e-4
    assert by_spans(_sums(task, rows, FIXED, rate=0.5), layer, cpu) == {}


def test_updates_are_solved_for_exactly_where_the_weights_stay(
    task: Task, rows: list[Batch]
) -> None:
    frozen, moved = (by_updates(_sums(task, rows, REDRAWN, rate)) for rate in (0.0, 0.5))
    assert frozen.keys() == moved.keys() == {0, 1, 2, 3}
    truth = _gradient(task, initial_weights(task, CONFIG, 0), rows[2])
    assert _error(frozen[2].update(), truth) < 1e-4
    assert _error(moved[2].update(), truth) > 0.01
    assert by_updates(_sums(task, rows, REDRAWN[:2], 0.0)) == {}
    assert by_updates(_sums(task, rows, FIXED, 0.0)) == {}


def test_a_guess_uses_no_later_round_and_is_blind_where_nothing_is_told_apart(
    task: Task, rows: list[Batch]
) -> None:
    sums = _sums(task, rows, REDRAWN, rate=0.1)
    rngs = [torch.Generator().manual_seed(0) for _ in sums]
    recovered = Disaggregate().reconstruct(sums, task, rngs, Job())
    assert [one.certified for one in recovered] == [False, False, True, True, True, True]
    assert [len(one.guess) for one in recovered] == [2 * SIZE] * 6
    assert recovered[0].note == "told apart: no client of the cohort's 2"
    images = torch.cat([rows[0].inputs, rows[2].inputs])
    nearest = torch.cdist(images.flatten(1), recovered[2].guess.inputs.flatten(1)).min(1).values
    assert nearest.max() < 1e-2


def test_members_of_sums_are_told_by_the_updates_of_single_clients(
    task: Task, rows: list[Batch]
) -> None:
    sums = _sums(task, rows, REDRAWN, rate=0.0)
    rngs = [torch.Generator() for _ in sums]
    fresh = task.encode(load_rows("shapes", "test[:24]", modality="image", image_size=8))
    batch = joined([*rows, fresh])
    whole, single = (
        Membership(statistic="cosine", separated=separated).reconstruct(
            sums, task, rngs, Job(candidates=lambda: batch)
        )
        for separated in (False, True)
    )

    def auc(scores: torch.Tensor | None) -> float:
        assert scores is not None
        return float((scores[:SIZE, None] > scores[None, 4 * SIZE :]).double().mean())

    assert auc(single[0].scores) == auc(whole[0].scores)  # nothing is told apart in round 1
    assert auc(single[-2].scores) > auc(whole[-2].scores)
    with pytest.raises(ValueError, match="uses all rounds already"):
        Membership(separated=True, over_rounds=True)


@pytest.fixture(scope="module")
def text_task() -> Task:
    return make_task(TEXT, load_rows("sentences", "train[:4]", modality="text"))


@pytest.fixture(scope="module")
def texts(text_task: Task) -> list[Batch]:
    whole = text_task.encode(load_rows("sentences", "train[:4]", modality="text"))
    return [whole[[client]] for client in range(4)]


def _tokens(batch: Batch) -> list[int]:
    assert batch.mask is not None
    tokens: list[int] = batch.inputs[0][batch.mask[0] == 1].tolist()
    return tokens


def test_words_that_one_client_has_are_read_from_sums(text_task: Task, texts: list[Batch]) -> None:
    words = [set(_tokens(batch)) for batch in texts]
    network, cpu = text_task.model(initial_weights(text_task, TEXT, 0)), torch.device("cpu")
    name = embedding_names(network).word
    assert name is not None
    sums = _sums(text_task, texts, REDRAWN, 0.01, TEXT, 1)
    found = by_words(sums, network, cpu)
    assert found.keys() == {0, 1, 2, 3}
    for client, seen in found.items():
        certain = seen.received[name].any(1).nonzero()[:, 0].tolist()
        others = set().union(*words[:client], *words[client + 1 :])
        assert words[client] - others <= set(certain) <= words[client]
        truth = _gradient(text_task, sums[-1].sent, texts[client])[name]
        unshared = next(word for word in certain if word not in others)
        angle = torch.cosine_similarity(seen.received[name][unshared], truth[unshared], 0)
        assert angle > 0.9
    rngs = [torch.Generator() for _ in sums]
    guesses = Disaggregate(of="embedding_rows", by="words").reconstruct(
        sums, text_task, rngs, Job()
    )
    assert set(_tokens(guesses[4].guess)) <= words[0]
    assert by_words(_sums(text_task, texts, FIXED, 0.01, TEXT, 1), network, cpu) == {}
    with pytest.raises(ValueError, match="told by embedding_rows"):
        Disaggregate(by="words")


@pytest.mark.slow
def test_sentences_of_single_clients_are_read_from_sums(
    text_task: Task, texts: list[Batch]
) -> None:
    sums = _sums(text_task, texts, REDRAWN, 1e-5, TEXT, 1)
    rngs = [torch.Generator().manual_seed(0) for _ in sums]
    found = Disaggregate(of="span", by="updates").reconstruct(sums, text_task, rngs, Job())[4]
    assert found.note == "told apart: 0, 3 of the cohort's 2"
    for place, client in enumerate((0, 3)):
        assert _tokens(found.guess[[place]]) == _tokens(texts[client])


def test_single_replies_are_no_sums(task: Task) -> None:
    sent = initial_weights(task, CONFIG, 0)
    alone = Observation(CaptureKey(round=1, client=0), sent, sent, "gradient", Knowledge())
    with pytest.raises(CannotAttack, match="no reply is a sum over known clients"):
        Disaggregate().reconstruct([alone], task, [torch.Generator()], Job())
