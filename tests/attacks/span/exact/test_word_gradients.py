"""The gradients of a batch's words in the adapters of the first layer."""

from functools import cache

import torch
from torch import nn

from attacks.span.exact.word_gradients import WordGradients, present, solved
from attacks.tokens.attacked_model import AttackedModel
from fedsim.models.adapters import is_adapter
from fedsim.tasks.text import TextTask
from tests.attacks.adapted import adapted, dictionary
from tests.attacks.victims import lines


@cache
def read() -> tuple[WordGradients, list[tuple[int, ...]], list[int]]:
    """Of three sentences, with the words that occur once."""
    victim = adapted("tiny-gpt2", 8, 20, max_length=10)
    seen, truth = victim.capture([0, 1, 2])
    assert isinstance(victim.task, TextTask)
    model = AttackedModel.of(seen, victim.task, victim.task.model(seen.sent))
    layers = model.usual_layers
    names = [name for name in layers.tokens.weights(seen.received) if is_adapter(name)]
    batch = [tuple(line) for line in lines(truth)]
    pairs = sorted({pair for line in batch for pair in enumerate(line[:-1])})
    places, words = (torch.tensor(part) for part in zip(*pairs, strict=True))
    inputs = torch.cat(
        [layers.of_tokens(w[None], int(p)) for p, w in zip(places, words, strict=True)]
    )
    update = seen.update(names)
    gradients = solved([update[name] for name in names], inputs)
    assert present(gradients, inputs).all()
    return WordGradients.of(layers, names, gradients, words, places), batch, words.tolist()


def test_a_sentence_explains_its_words_alone() -> None:
    gradients, batch, words = read()
    for line in batch:
        nats, right = gradients.agreement([line])
        assert bool(right)
        for place in range(1, len(line) - 1):
            other = next(w for w in words if w != line[place])
            wrong = (*line[:place], other, *line[place + 1 :])
            less, ever = gradients.agreement([wrong])
            assert float(less) < float(nats)
            assert not bool(ever)


def test_a_right_sentence_is_taken_off() -> None:
    gradients, batch, _ = read()
    rest = gradients.without(batch[0], right=True)
    assert float(rest.agreement([batch[0]])[0]) < float(gradients.agreement([batch[0]])[0]) / 2
    for line in batch[1:]:
        assert float(rest.agreement([line])[0]) >= float(gradients.agreement([line])[0]) - 1e-3


def test_next_words_are_those_of_the_loss_behind_each() -> None:
    gradients, batch, words = read()
    first = dict([*gradients.modules.items()][:1]), gradients.gradients[:1]
    alone = WordGradients(
        gradients.layers, first[0], gradients.rows, first[1], gradients.everywhere
    )
    prefix, tried = batch[0][:2], torch.tensor(sorted(set(words)))
    (nats,) = alone.next_words([prefix], tried)
    # With nothing before it but the start, the one word of these lines is the prefix's last.
    expected, _ = alone.agreement([(*prefix, int(word)) for word in tried])
    assert torch.allclose(nats, expected, atol=1e-3)


def test_words_of_rounding_are_not_present() -> None:
    inputs = dictionary(12, 32)
    matrix = torch.randn(4, 10, generator=torch.Generator().manual_seed(1)) @ inputs[:10]
    gradients = solved([matrix], inputs)
    assert present(gradients, inputs).tolist() == [True] * 10 + [False] * 2
    assert nn.functional.mse_loss(gradients[0].T.float() @ inputs, matrix) < 1e-8
