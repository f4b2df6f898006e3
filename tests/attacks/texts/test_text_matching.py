"""Short phrases from the gradients of a small trained model, and what keeps them from coming."""

import os
import re
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.base import Job, Reconstruction
from attacks.prior_only import PriorOnly
from attacks.span.span import Span
from attacks.texts.lamp import LAMP
from attacks.texts.matching import Matching
from attacks.texts.tag import TAG, DLGText
from attacks.texts.text_matching import TextMatching
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import CannotAttack
from fedsim.knowledge import Knowledge
from fedsim.models import transformer
from fedsim.store.capture import Observation
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.masked_language_modelling import unmasked
from fedsim.types import Batch
from tests.attacks.texts.cases import (
    DEFENSE,
    GPT2,
    LAMP_COS,
    LAMP_L2L1,
    SINGLE,
    attack,
    in_place,
    look,
    mean,
    quick,
    several,
)
from tests.attacks.victims import Victim, lines, tokens


def labels(batch: Batch) -> Counter[int]:
    return Counter(batch.labels.tolist())


@pytest.fixture(scope="module")
def bert() -> Victim:
    return quick()


@pytest.fixture(scope="module")
def lamp(bert: Victim) -> list[Reconstruction]:
    """What LAMP makes of four single sentences."""
    return attack(bert, LAMP_COS, several(bert, SINGLE[:4])[0])


@pytest.fixture(scope="module")
def masked() -> Victim:
    return quick("masked-language-modelling", 5)


LANGUAGE: list[tuple[str, DEFENSE]] = [
    ("tiny-gpt2", {"name": "none"}),
    ("transformer3", {"name": "freeze_embeddings", "head": True}),
]
PAIRS = [[0, 1], [2, 3], [4, 5]]


@pytest.mark.some(3)
@pytest.mark.parametrize("chosen", [LAMP_COS, TAG(), DLGText()])
def test_a_search_of_one_step_misses_what_the_gradient_tells(
    bert: Victim, chosen: TextMatching
) -> None:
    short = replace(chosen, steps=1, starts=1, discrete="none")
    (seen,), (truth,) = several(bert, SINGLE[:1])
    (guess,) = attack(bert, short, [seen])
    rng = torch.Generator().manual_seed(0)
    both = short.objectives(seen, bert.task, [guess.guess, truth], rng, Job())
    assert both is not None
    assert both[0] == pytest.approx(guess.objective)
    assert both[1] < both[0]


@pytest.mark.slow
def test_lamp_finds_phrases_and_its_forerunners_do_not(
    bert: Victim, lamp: list[Reconstruction]
) -> None:
    seen, truths = several(bert, SINGLE[:4])
    assert mean(lamp, truths) > 0.8
    assert mean(attack(bert, LAMP_L2L1, seen[:1]), truths[:1]) > 0.8
    for other in (TAG(steps=25), DLGText(steps=25)):
        assert mean(attack(bert, other, seen[:1]), truths[:1]) < 0.4
    for guess, truth in zip(lamp, truths, strict=True):
        assert torch.equal(guess.guess.labels, truth.labels)
        assert [len(line) for line in lines(guess.guess)] == [len(line) for line in lines(truth)]
        assert guess.steps == 60
        assert not guess.expired
        assert [step for step, _, _ in guess.trace] == [25, 50, 60]


@pytest.mark.slow
def test_matrices_alone_are_enough(bert: Victim) -> None:
    """LAMP's threat model, appendix A.1: words, positions and biases are not sent."""
    seen, truth = look(bert, [1], {"name": "freeze_embeddings", "position": True, "bias": True})
    assert all(value.dim() == 2 for name, value in seen.received.items() if "Norm" not in name)
    with pytest.raises(CannotAttack, match="does not send the word embeddings"):
        bert.attack(seen)
    changed = seen.knowledge.model_copy(update={"labels": tuple(truth.labels.tolist())})
    (guess,) = attack(bert, LAMP_COS, [replace(seen, knowledge=changed)])
    assert in_place(guess.guess, truth) == 1
    (exact,) = attack(bert, Span(), [seen])
    assert exact.confidence == ("certified",)
    assert lines(exact.guess) == lines(truth)


def test_the_objective_is_lowest_at_the_truth(bert: Victim, lamp: list[Reconstruction]) -> None:
    _, truths = several(bert, SINGLE[:4])
    right = [in_place(g.guess, truth) == 1 for g, truth in zip(lamp, truths, strict=True)]
    assert sum(right) >= 2
    for guess, exact in zip(lamp, right, strict=True):
        assert guess.objective is not None
        assert (abs(guess.objective) < 1e-5) == exact


@pytest.mark.slow
def test_two_sentences_whose_labels_and_lengths_are_not_paired(bert: Victim) -> None:
    seen, truths = several(bert, PAIRS[:2])
    assert len(set(map(len, lines(truths[0])))) == 2
    assert len(set(truths[0].labels.tolist())) == 2
    guesses = attack(bert, LAMP_COS, seen)
    assert mean(guesses, truths) > 0.6
    for guess, truth in zip(guesses, truths, strict=True):
        assert labels(guess.guess) == labels(truth)
        assert Counter(map(len, lines(guess.guess))) == Counter(map(len, lines(truth)))


@pytest.mark.slow
def test_lengths_are_read_off_the_position_rows(bert: Victim) -> None:
    seen, truths = several(bert, SINGLE[:4])
    hidden = [replace(each, knowledge=Knowledge(num_examples=1)) for each in seen]
    guesses = attack(bert, LAMP_COS, hidden)
    assert mean(guesses, truths) > 0.75
    for guess, truth in zip(guesses, truths, strict=True):
        assert len(lines(guess.guess)[0]) == len(lines(truth)[0])


@pytest.mark.slow
def test_several_local_steps(bert: Victim) -> None:
    federation = {"protocol": "fedavg", "batch_size": 1, "learning_rate": 0.05, "local_steps": 4}
    seen, truths = several(bert, SINGLE[:2], **federation)
    assert mean(attack(bert, LAMP_COS, seen), truths) > 0.7


@pytest.mark.slow
def test_targets_of_a_masked_language_model(masked: Victim) -> None:
    seen, truths = several(masked, [[0], [1], [3], [25]])
    schedule: dict[str, Any] = {"steps": 150, "decay_every": 15, "discrete_every": 30}
    found = attack(masked, replace(LAMP_COS, **schedule), seen)
    pairs = [(own.guess, truth) for own, truth in zip(found, truths, strict=True)]
    places = 0
    for guess, truth in pairs:
        asked, wanted = (batch.labels != -100 for batch in (guess, truth))
        assert guess.labels[asked].tolist() == truth.labels[wanted].tolist()
        places += torch.equal(asked[:, : wanted.shape[1]], wanted)
    assert places >= 3
    whole = sum(in_place(unmasked(guess), unmasked(truth)) for guess, truth in pairs)
    assert whole > 2
    assert whole > sum(in_place(guess, unmasked(truth)) for guess, truth in pairs) + 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("model", "defense"), LANGUAGE)
def test_words_of_a_language_model(model: str, defense: DEFENSE) -> None:
    victim = quick("language-modelling", 30 if model == "tiny-gpt2" else 0, model)
    seen, truth = look(victim, [0], defense)
    owned = Job(auxiliary=lambda: victim.task.encode(victim.rows.take(list(range(8, 48)))))
    hidden = replace(seen, knowledge=Knowledge(num_examples=1, auxiliary=True))
    (usual,) = PriorOnly().reconstruct([hidden], victim.task, [torch.Generator()], owned)
    (guess,) = attack(victim, LAMP_COS, [hidden])
    assert in_place(guess.guess, truth) > max(0.6, 2 * in_place(usual.guess, truth))
    assert torch.equal(guess.guess.labels, guess.guess.inputs)  # nothing is padded
    assert len(lines(guess.guess)[0]) == len(lines(truth)[0])


@pytest.mark.slow
def test_a_group_gives_what_each_gives_alone(bert: Victim) -> None:
    for search, batches in ((replace(LAMP_COS, steps=12), SINGLE[:2]), (TAG(steps=5), PAIRS[:2])):
        # As many pairings of lengths and labels for each: more pairings are more tries.
        seen, truths = several(bert, batches)
        assert len({truth.inputs.shape[1] for truth in truths}) > 1
        together = attack(bert, search, seen)
        for own, each in zip(together, seen, strict=True):
            (alone,) = attack(bert, search, [each])
            assert alone.objective == pytest.approx(own.objective, rel=1e-3, abs=1e-5)
            if isinstance(search, LAMP):
                assert lines(own.guess) == lines(alone.guess)


def test_a_pass_is_as_wide_as_its_longest(bert: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[tuple[int, int]] = []
    whole = Matching.__call__

    def noted(self: Matching, guess: Tensor, batch: Batch, *options: Any, **named: Any) -> Tensor:
        assert batch.mask is not None
        assert guess.shape[-2] == batch.mask.shape[1] == int(batch.mask.sum(1).max())
        widths.append((len(guess), guess.shape[-2]))
        return whole(self, guess, batch, *options, **named)

    monkeypatch.setattr(Matching, "__call__", noted)
    monkeypatch.setattr("attacks.texts.text_search.PADDED", 2)
    seen, truths = several(bert, [[2], [0], [3], [1]])
    assert [truth.inputs.shape[1] for truth in truths] == [8, 7, 7, 9]
    attack(bert, LAMP(steps=1, starts=1, discrete="none"), seen)
    assert widths[len(seen) : len(seen) + 2] == [(3, 8), (1, 9)]  # after the starts of each


def test_unlike_updates_do_not_share_passes(bert: Victim) -> None:
    frozen: DEFENSE = {"name": "freeze_embeddings", "position": True}
    (first,), _ = several(bert, [[0]])
    second, _ = look(bert, [1], frozen, client=1)
    third, _ = look(bert, [4, 5], client=2)
    guesses = attack(bert, LAMP(steps=2, starts=2, proposals=2), [first, third, second])
    assert [len(guess.guess) for guess in guesses] == [1, 2, 1]
    assert [len(lines(guess.guess)[0]) for guess in guesses][::2] == [7, 9]


# Ends


def test_time_is_heeded(bert: Victim) -> None:
    seen, truths = several(bert, [[0], [1]])
    start = time.process_time()
    guesses = attack(bert, LAMP(starts=100_000), seen, Job(deadline=0.0))
    assert time.process_time() - start < 20  # all starts would take minutes
    for guess, truth in zip(guesses, truths, strict=True):
        assert guess.expired
        assert guess.steps == 0
        assert lines(guess.guess)[0][0] == 2
        assert len(lines(guess.guess)[0]) == len(lines(truth)[0])
        assert guess.objective is not None
    reports: list[int] = []

    def report(step: int, *_: object) -> None:
        reports.append(step)
        job.deadline = 0.0 if step else job.deadline

    job = Job(report=report)
    (guess,) = attack(bert, replace(LAMP_COS, steps=10**6), seen[:1], job)
    assert guess.expired
    assert 0 < reports[-1] <= guess.steps < 10**5


def test_a_search_that_diverges_says_so(bert: Victim) -> None:
    seen, _ = several(bert, [[0]])
    for search in (replace(LAMP_COS, learning_rate=1e30), TAG(steps=9, learning_rate=1e30)):
        (guess,) = attack(bert, search, seen)
        assert re.fullmatch(r"the search diverged at step [23]; lower learning_rate", guess.note)
        assert not guess.expired
        assert guess.objective is not None
        assert torch.tensor(guess.objective).isfinite()
        assert lines(guess.guess)[0][0] == 2


def test_a_sentence_without_words(bert: Victim) -> None:
    (seen,), _ = several(bert, [[0]])
    empty = replace(seen, knowledge=Knowledge(num_examples=1, lengths=(2,)))
    (guess,) = attack(bert, LAMP_COS, [empty])
    assert lines(guess.guess) == [[2, 3]]


@pytest.mark.slow
def test_the_note_names_a_missing_prior(bert: Victim, tmp_path: Any) -> None:
    seen, _ = several(bert, [[0]])
    (bare,) = attack(bert, replace(LAMP_COS, steps=1), seen)
    assert bare.note == (
        "without a language prior; name one as prior, or train one with fedsim prior"
    )
    network: Any = transformer.build(GPT2, "language-modelling", 3)
    network.save_pretrained(tmp_path)
    tokenizer: Any = bert.task.tokenizer  # type: ignore[attr-defined]
    tokenizer.save_pretrained(str(tmp_path))
    short = replace(LAMP_COS, steps=1)
    for search in (replace(short, alpha_lm=0.0), replace(short, prior=str(tmp_path)), TAG(steps=1)):
        assert attack(bert, search, seen)[0].note == ""


@pytest.mark.slow
def test_a_prior_decides_where_gradients_do_not(bert: Victim, tmp_path: Any) -> None:
    network: Any = transformer.build(GPT2, "language-modelling", 3)
    network.save_pretrained(tmp_path)
    bert.task.tokenizer.save_pretrained(str(tmp_path))  # type: ignore[attr-defined]
    seen, truths = several(bert, [[0]])
    deaf = replace(LAMP_COS, prior=str(tmp_path), alpha_lm=1e6)
    (guess,), (plain,) = attack(bert, deaf, seen), attack(bert, LAMP_COS, seen)
    assert in_place(plain.guess, truths[0]) > in_place(guess.guess, truths[0])


# What cannot be attacked


def refused(victim: Victim, search: TextMatching, seen: Observation, reason: str) -> None:
    with pytest.raises(CannotAttack, match=re.escape(reason)):
        attack(victim, search, [seen])


def test_a_prior_of_another_vocabulary_is_refused(bert: Victim, tmp_path: Any) -> None:
    network: Any = transformer.build(GPT2, "language-modelling", 3)
    network.save_pretrained(tmp_path)
    transformer.tokenizer(transformer.locate("tiny-gpt2")).save_pretrained(str(tmp_path))
    (seen,), _ = several(bert, [[0]])
    refused(bert, replace(LAMP_COS, prior=str(tmp_path)), seen, "is not that of 'tiny-bert'")


def test_without_gradients_there_is_nothing_to_match(bert: Victim) -> None:
    (seen,), _ = several(bert, [[0]])
    none = "the client sent no parameter, hence no gradient to match."
    facts = seen.knowledge.model_copy(update={"labels": (0,), "lengths": (5,)})
    refused(bert, LAMP_COS, replace(seen, received={}, knowledge=facts), none)
    nothing = "no gradient was sent that a text could be matched to. Freeze less, or name other"
    refused(bert, replace(LAMP_COS, layers=("word_embeddings",)), seen, nothing)
    refused(bert, replace(LAMP_COS, layers=("absent",)), seen, nothing)


@pytest.mark.slow
def test_layers_choose_what_is_compared(bert: Victim) -> None:
    seen, truths = several(bert, [[4], [2]])
    guesses = attack(bert, replace(LAMP_COS, layers=("layer.0.", "LayerNorm")), seen)
    assert mean(guesses, truths) > 0.6
    # Only what is named plays a part.
    broken = [
        replace(
            each,
            received={
                name: torch.zeros_like(value) if "layer.1." in name else value
                for name, value in each.received.items()
            },
        )
        for each in seen
    ]
    search = replace(LAMP_COS, layers=("layer.0.",), steps=3)
    own, other = attack(bert, search, seen), attack(bert, search, broken)
    assert [guess.objective for guess in own] == [guess.objective for guess in other]


@pytest.mark.slow
@pytest.mark.skipif("FEDSIM_HUB" not in os.environ, reason="FEDSIM_HUB names no folder of models")
def test_minilm_on_cola() -> None:
    model, data = "sentence-transformers/all-MiniLM-L6-v2", "nyu-mll/glue:cola"
    rows = load_rows(data, "train[:40]", modality="text")
    config = TaskConfig(model=model, dataset=data)
    task = make_task(config, rows)
    victim = Victim(task, rows, initial_weights(task, config, 0))
    assert isinstance(rows.inputs, tuple)
    short = sorted(range(40), key=lambda row: len(str(rows.inputs[row])))[:2]
    seen, truths = several(victim, [[row] for row in short])
    guesses = attack(victim, replace(LAMP_COS, learning_rate=0.03), seen)
    shares = [
        len(tokens(guess.guess) & tokens(truth)) / len(tokens(truth))
        for guess, truth in zip(guesses, truths, strict=True)
    ]
    assert sum(shares) / 2 > 0.6
