"""Classes and targets that are searched for, and those that the update gives away."""

import re
from dataclasses import replace

import pytest
import torch

from attacks.texts.label_search import LabelSearch, NextTokens, Targets
from fedsim.errors import CannotAttack
from fedsim.store.capture import Observation
from fedsim.types import Batch
from tests.attacks.texts.cases import LAMP_COS, attack, look, quick
from tests.attacks.victims import Victim

FREE = torch.tensor([[False, True, True, True, False], [False, True, False, False, False]])
ONE = slice(0, 1)
ANY = torch.zeros(0), torch.zeros(0)
"""Embeddings or ids, and a mask, where they do not matter."""
BIAS = "cls.predictions.bias"


def sized(places: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A guess of so many places, of which nothing else matters, and a mask."""
    return torch.zeros(places, 1), ANY[1]


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def masked() -> Victim:
    return quick("masked-language-modelling")


def targets(victim: Victim, *seen: Observation) -> Targets:
    return Targets(seen, victim.task.model(victim.sent))


def test_known_classes_stay() -> None:
    classes = LabelSearch()
    start = classes.start((2, 0), FREE, rng())
    assert start.tolist() == [2, 0]
    values = start[None, None]
    assert classes.labels(values, ONE, *ANY) is values
    assert classes.settled(start, 0, *ANY).tolist() == [2, 0]


def test_targets_are_the_tokens_asked_for(masked: Victim) -> None:
    for rows in ([0], [1], [2, 3], [4, 5, 6, 7], list(range(8, 24))):
        seen, truth = look(masked, rows)
        label_search = targets(masked, seen)
        places = torch.ones(len(rows), truth.inputs.shape[1], dtype=torch.bool)
        settled = label_search.settled(label_search.start(None, places, rng()), 0, *ANY)
        wanted = truth.labels[truth.labels != -100]
        # Two targets may fall on one place in random logits, so tokens are compared, not numbers.
        assert set(settled[settled != -100].tolist()) <= set(wanted.tolist())
        values = label_search.start(None, places, rng())[None, None]
        shares = label_search.labels(values, ONE, *sized(places.shape[1]))[0, 0].sum((0, 1))
        expected = torch.bincount(wanted, minlength=len(shares)) / len(wanted)
        torch.testing.assert_close(shares, expected, atol=1e-4, rtol=0)


def test_targets_are_read_off_weights_too(masked: Victim) -> None:
    seen, truth = look(masked, [2, 3], protocol="fedavg", learning_rate=0.1, local_steps=1)
    places = torch.ones(2, truth.inputs.shape[1], dtype=torch.bool)
    label_search = targets(masked, seen)
    start = label_search.start(None, places, rng())[None, None]
    shares = label_search.labels(start, ONE, *sized(places.shape[1]))[0, 0].sum((0, 1))
    assert set(shares.nonzero()[:, 0].tolist()) == set(truth.labels[truth.labels != -100].tolist())


def test_targets_stand_where_words_stand(masked: Victim) -> None:
    seen, _ = look(masked, [2, 3])
    label_search = targets(masked, seen)
    start = label_search.start(None, FREE, rng())
    assert start.shape == (2, *FREE.shape)
    short = label_search.labels(start[None, None], ONE, *sized(2))[0, 0].sum(-1)
    soft = label_search.labels(start[None, None], ONE, *sized(FREE.shape[1]))[0, 0].sum(-1)
    assert torch.equal(short, soft[:, :2])
    assert bool((soft[~FREE] == 0).all())
    assert bool((soft[FREE] > 0).all())
    assert not bool((label_search.settled(start, 0, *ANY)[~FREE] != -100).any())


def test_victims_with_more_targets_weigh_no_more(masked: Victim) -> None:
    few, _ = look(masked, [0])
    many, _ = look(masked, [4, 5, 6, 7])
    label_search = targets(masked, few, many)
    values = torch.stack([label_search.start(None, FREE, rng())[None] for _ in range(2)])
    labels = label_search.labels(values, slice(None), *sized(FREE.shape[1]))
    torch.testing.assert_close(labels.flatten(1).sum(1), torch.ones(2))
    # Tokens of the one are not asked of the other.
    alone = targets(masked, few)
    start = alone.start(None, FREE, rng())
    padded = torch.cat([start, torch.zeros(len(values[0, 0]) - 1, *FREE.shape)])
    torch.testing.assert_close(
        label_search.labels(padded[None, None], ONE, *sized(FREE.shape[1])),
        alone.labels(start[None, None], ONE, *sized(FREE.shape[1])),
    )


def test_the_truth_as_shares_is_the_clients_loss(masked: Victim) -> None:
    seen, truth = look(masked, [1, 2])
    label_search = targets(masked, seen)
    network = masked.task.model(masked.sent)
    wanted = [
        (int(truth.labels[place[0], place[1]]), place)
        for place in (truth.labels != -100).nonzero().tolist()
    ]
    assert len(wanted) == 2
    values = torch.full((2, *truth.labels.shape), -1e9)
    for number, (_, (sentence, place)) in enumerate(sorted(wanted)):  # tokens ascend
        values[number, sentence, place] = 0.0
    soft = label_search.labels(values[None, None], ONE, *sized(truth.labels.shape[1]))[0, 0]
    batch = Batch(truth.inputs, soft, truth.mask)
    torch.testing.assert_close(masked.task.loss(network, batch), masked.task.loss(network, truth))
    assert torch.equal(label_search.settled(values, 0, *ANY), truth.labels)


def test_a_frozen_bias_of_the_head_is_named(masked: Victim) -> None:
    seen, _ = look(masked, [0])
    frozen = {name: value for name, value in seen.received.items() if name != BIAS}
    assert len(frozen) == len(seen.received) - 1
    reason = re.escape(
        "a masked language model's targets are read off the bias of its head, which was not sent."
    )
    with pytest.raises(CannotAttack, match=reason):
        attack(masked, LAMP_COS, [replace(seen, received=frozen)])


def test_targets_of_a_causal_model_are_its_words() -> None:
    gpt2 = quick("language-modelling", 30, "tiny-gpt2")
    _, truth = look(gpt2, [0, 2])
    assert truth.mask is not None
    network = gpt2.task.model(gpt2.sent)
    words = network.get_input_embeddings().weight.detach()  # type: ignore[operator]
    next_tokens = NextTokens(network)
    values = next_tokens.start(None, truth.mask == 1, rng())[None, None]
    guess, mask = words[truth.inputs][None, None], truth.mask[None, None]
    soft = next_tokens.labels(values, ONE, guess, mask)[0, 0]
    assert float(soft[:, 1:].sum()) == pytest.approx(1)
    assert torch.equal(soft.argmax(-1)[truth.mask == 1], truth.inputs[truth.mask == 1])
    assert torch.equal(next_tokens.settled(values[0, 0], 0, truth.inputs, truth.mask), truth.labels)
    loss = gpt2.task.loss(network, Batch(truth.inputs, soft, truth.mask))
    torch.testing.assert_close(loss, gpt2.task.loss(network, truth), rtol=0.05, atol=0)
