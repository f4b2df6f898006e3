"""Words of one sentence, told by the gradients of query and key."""

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, DebertaV2Config
from transformers import DebertaV2ForSequenceClassification as Deberta

from attacks.base import Job
from attacks.tokens.first_layers import FirstLayers
from attacks.tokens.word_clusters import WordClusters
from attacks.tokens.word_places import WordPlaces
from fedsim.types import Tensors

START, STOP, WORDS = 1, 2, 60
LENGTHS = (6, 7, 9, 10, 11)


def sentences(repeated: int) -> list[list[int]]:
    """Of different words, but for one that stands in several sentences."""
    words = iter(range(3, 3 + WORDS))
    lines = [[START, *[next(words) for _ in range(n - 2)], STOP] for n in LENGTHS]
    for line in lines[:repeated]:
        line[2] = 3 + WORDS
    return lines


def bert(layers: int = 3) -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=80,
        hidden_size=192,
        num_hidden_layers=layers,
        num_attention_heads=6,
        intermediate_size=256,
        max_position_embeddings=16,
        initializer_range=0.2,
    )
    return BertForSequenceClassification(config).eval()


def gradients(network: torch.nn.Module, lines: list[list[int]]) -> Tensors:
    loss = torch.zeros(())
    for label, line in enumerate(lines):
        batch = {"input_ids": torch.tensor([line]), "labels": torch.tensor([label % 2])}
        loss = loss + network(**batch).loss / len(lines)
    loss.backward()
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def candidates(lines: list[list[int]]) -> list[Tensor]:
    """Every word of the batch at every position but the first."""
    words = torch.tensor(sorted({word for line in lines for word in line} - {START}))
    return [torch.tensor([START]), *[words] * (max(LENGTHS) - 1)]


@pytest.mark.parametrize("repeated", [0, 3])
def test_the_words_of_each_sentence_and_their_order(repeated: int) -> None:
    lines, network = sentences(repeated), bert()
    update = gradients(network, lines)
    layers = FirstLayers(network, [10, 20, 30], max(LENGTHS))
    found = WordClusters.of(layers, update, candidates(lines), STOP, Job())
    assert found is not None
    for line in lines:
        own = [group for group in found.groups if group.anchor == line[-2]]
        assert own[0].words >= set(line[1:-1])
        assert repeated or own[0].words == set(line[1:-1])
        assert tuple(line) in found.lines(own[0], LENGTHS)
    # The most coherent sets are of one sentence each, not of the word that several share.
    best = [group.words for group in found.distinct(2)]
    assert best[0] != best[1]
    assert all(any(2 * len(own & {*line}) > len(own) for line in lines) for own in best)


def test_a_known_sentence_leaves_its_words_to_no_other() -> None:
    lines, network = sentences(3), bert()
    update = gradients(network, lines)
    layers = FirstLayers(network, [10, 20, 30], max(LENGTHS))
    found = WordClusters.of(layers, update, candidates(lines), STOP, Job())
    left = None if found is None else found.beside(lines[:2], Job())
    assert left is not None
    shared = 3 + WORDS
    gone = {word for line in lines[:2] for word in line[1:-1]} - {shared}
    assert {group.anchor for group in left.groups} == {
        word for line in lines for word in line[1:-1]
    } - gone
    assert all(gone.isdisjoint(group.words) for group in left.groups)


def test_a_known_sentence_may_hold_a_word_that_is_no_candidate_at_its_place() -> None:
    lines, network = sentences(0), bert()
    update, tokens = gradients(network, lines), candidates(lines)
    tokens[3] = tokens[3][tokens[3] != lines[0][3]]
    layers = FirstLayers(network, [10, 20, 30], max(LENGTHS))
    found = WordClusters.of(layers, update, tokens, STOP, Job())
    left = None if found is None else found.beside(lines[:1], Job())
    assert left is not None
    others = {word for line in lines[1:] for word in line[1:-1]}
    assert {group.anchor for group in left.groups} >= others


@pytest.mark.some(2)
@pytest.mark.parametrize("repeated", [0, 3])
@pytest.mark.parametrize("tables", [True, False])
def test_words_that_stand_once_are_placed_and_others_shared(repeated: int, tables: bool) -> None:
    lines, network = sentences(repeated), bert()
    update, tokens = gradients(network, lines), candidates(lines)
    if not tables:
        update = {name: value for name, value in update.items() if "embeddings" not in name}
    layers = FirstLayers(network, [10, 20, 30], max(LENGTHS))
    places = WordPlaces.of(layers, update, tokens, STOP)
    assert places is not None
    words = {word for line in lines for word in line} - {START, STOP}
    where = {word: {line.index(word) for line in lines if word in line} for word in words}
    narrow = [{*part.tolist()} for part in places.narrowed(tokens)]
    once = {word for word, right in where.items() if len(right) == 1}
    assert sum(word in narrow[at] for word in once for at in where[word]) >= 0.9 * len(once)
    placed = {word for word in words if sum(word in part for part in narrow) == 1}
    assert placed <= once
    assert len(placed) >= 0.5 * len(once)
    assert all(STOP in part for part in narrow[1:])
    clusters = WordClusters.of(layers, update, tokens, STOP, Job(), places)
    assert clusters is not None
    ordered = []
    for line in lines:
        (group,) = [each for each in clusters.groups if each.anchor == line[-2]]
        ordered.append(clusters.lines(group, LENGTHS))
        assert line[-2] not in placed or min(map(len, ordered[-1])) >= len(line) - 1
    right = sum(tuple(line) in ways for line, ways in zip(lines, ordered, strict=True))
    assert right >= (5 if tables else 3)


def test_places_are_open_without_the_gradient() -> None:
    lines, network = sentences(0), bert()
    tokens = candidates(lines)
    layers = FirstLayers(network, [10, 20, 30], max(LENGTHS))
    assert WordPlaces.of(layers, {}, tokens, STOP) is None
    noise = torch.Generator().manual_seed(0)
    other = {
        name: torch.randn(value.shape, generator=noise)
        for name, value in gradients(network, lines).items()
    }
    places = WordPlaces.of(layers, other, tokens, STOP)
    assert places is not None
    assert list(map(len, places.narrowed(tokens))) == list(map(len, tokens))


def test_another_gradient_of_the_same_words_tells_nothing() -> None:
    lines, network = sentences(0), bert()
    update = gradients(network, lines)
    noise = torch.randn(192, 192, generator=torch.Generator().manual_seed(0))
    other = {name: noise if value.shape == noise.shape else value for name, value in update.items()}
    layers = FirstLayers(network, [10, 20, 30], max(LENGTHS))
    found = WordClusters.of(layers, other, candidates(lines), STOP, Job())
    assert found is not None
    true = [set(line[1:-1]) for line in lines]
    assert not any(group.words in true for group in found.groups)


def test_it_says_nothing_where_it_cannot() -> None:
    lines, network = sentences(0), bert()
    update = gradients(network, lines)
    layers, tokens = FirstLayers(network, [10, 20, 30], 11), candidates(lines)
    assert WordClusters.of(layers, {}, tokens, STOP, Job()) is None
    assert WordClusters.of(layers, update, tokens, STOP, Job(deadline=0.0)) is None
    # Relative positions are no part of the first layer's inputs.
    config = DebertaV2Config(
        vocab_size=80,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        relative_attention=True,
        position_biased_input=False,
    )
    relative = Deberta(config).eval()
    first_layers = FirstLayers(relative, [10, 20, 30], 11)
    assert WordClusters.of(first_layers, gradients(relative, lines), tokens, STOP, Job()) is None
