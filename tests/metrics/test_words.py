"""A text or image scored against itself has the best value, in every script and metric."""

import math
import random
import string
from collections.abc import Sequence
from unicodedata import normalize

import pytest
import torch

from fedsim.metrics import METRICS
from fedsim.metrics.base import Examples
from fedsim.metrics.match import Modality, align, match
from fedsim.metrics.rouge import Rouge1, Rouge2, RougeL
from fedsim.metrics.sentences import overlaps
from fedsim.metrics.text import words
from fedsim.types import Batch
from tests.metrics.scripts import SENTENCES, WORDLESS

UNDEFINED = {"rouge2", "rouge2_best"}
"""Metrics that a text of one word, which has no pair of words, gives nothing to measure."""


def metrics(modality: str) -> list[str]:
    fitting = {name for name, one in METRICS.items() if one.modality in ("any", modality)}
    return sorted(name for name in fitting if not METRICS[name]().available())


def texts(*lines: str) -> Examples:
    """Tokens are bytes, as those of GPT-2 are in scripts that its vocabulary lacks."""
    tokens = tuple(tuple(line.encode()) for line in lines)
    inputs = torch.zeros(len(lines), 256, dtype=torch.int64)
    mask = torch.zeros_like(inputs)
    for row, ids in enumerate(tokens):
        inputs[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        mask[row, : len(ids)] = 1
    special = tuple(f"[CLS] {line} [SEP]" for line in lines)
    return Examples(Batch(inputs, torch.arange(len(lines)), mask), lines, special, tokens, 256)


def images(*pixels: torch.Tensor) -> Examples:
    return Examples(Batch(torch.stack(pixels), torch.arange(len(pixels))))


def score(name: str, guess: str, truth: str) -> float:
    return METRICS[name]().score(texts(guess), texts(truth)).item()


def is_best(name: str, values: Sequence[float]) -> bool:
    best = {"mse": 0.0, "psnr": 100.0, "lpips": 0.0, "lpips_vgg": 0.0}.get(name, 1.0)
    if name in UNDEFINED:
        values = [value for value in values if not math.isnan(value)]
    return list(values) == pytest.approx([best] * len(values), abs=1e-6)


@pytest.mark.parametrize("name", metrics("text"))
def test_a_text_equals_itself(name: str) -> None:
    for text in (*SENTENCES.values(), *WORDLESS):
        value = score(name, text, text)
        assert is_best(name, [value]), (text, value)


@pytest.mark.parametrize("name", ["rouge1", "rougeL", "rougeL_best", "bleu"])
def test_half_a_sentence_scores_between_nothing_and_all(name: str) -> None:
    for sentence in SENTENCES.values():
        half = sentence[: len(sentence) // 2]
        assert 0.0 < score(name, half, sentence) < 1.0, sentence
        assert score(name, "", sentence) == 0.0


@pytest.mark.parametrize("name", ["rouge1", "rougeL", "bleu"])
def test_a_composed_letter_equals_its_parts(name: str) -> None:
    for sentence in SENTENCES.values():
        assert score(name, normalize("NFD", sentence), normalize("NFC", sentence)) == 1.0


@pytest.mark.parametrize(
    ("guess", "truth", "value"),
    [
        ("Faße", "Füße", 0.0),  # an accent is part of its letter
        ("Fuße", "Füße", 0.0),
        ("ΣΟΦΌΣ", "σοφός", 1.0),  # case is not
        ("ВСЕ люди", "все Люди", 1.0),
        ("人人自由", "人人生而自由", 2 * 4 / (4 + 6)),
        ("हिन्द", "हिन्दी", 0.0),  # a vowel's mark is part of its word
        ("I 😀 you", "I 💔 you", 2 / 3),
        ("...", "the cat", 0.0),
        ("...", "..", 2 * 2 / (3 + 2)),
    ],
)
def test_known_answers(guess: str, truth: str, value: float) -> None:
    assert score("rouge1", guess, truth) == pytest.approx(value)
    assert overlaps((guess,), (truth,)).item() == pytest.approx(score("rougeL", guess, truth))


def test_rouge_2_of_a_single_word_is_undefined_whatever_the_guess() -> None:
    for guess in ("", "слово", "два слова"):
        assert math.isnan(score("rouge2", guess, "слово"))
    assert score("rouge2", "слово", "два слова") == 0.0


def test_words() -> None:
    assert words("Don't stop_it: 3,000!") == ("don", "t", "stop", "it", "3", "000")
    assert words("漢字abcかな2019年") == ("漢", "字", "abc", "か", "な", "2019", "年")
    assert words("བོད་སྐད།") == ("བོ", "ད", "སྐ", "ད")
    assert words("می‌خواهم") == ("می‌خواهم",)
    assert words("ภาษาดี") == ("ภ", "า", "ษ", "า", "ดี")
    assert words(" \u3000\n") == ()


def test_on_ascii_the_words_and_scores_are_those_of_rouge_score() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    rng = random.Random(0)
    letters = string.ascii_letters * 2 + string.digits + string.punctuation + " " * 20
    kinds = {"rouge1": Rouge1, "rouge2": Rouge2, "rougeL": RougeL}
    library = RougeScorer(list(kinds), use_stemmer=False)
    vocabulary = ["the", "The", "cat", "Don't", "a_b", "3,000", "U.S.", "--", "x" * 3]

    def line() -> str:
        if rng.random() < 0.5:
            return "".join(rng.choices(letters, k=rng.randrange(80)))
        return " ".join(rng.choices(vocabulary, k=rng.randrange(12)))

    pairs = [(line(), line()) for _ in range(3000)]
    defined = [(g, t) for g, t in pairs if library._tokenizer.tokenize(t) or not (g or t).strip()]
    guesses, truths = zip(*defined, strict=True)
    blank = Batch(torch.zeros(len(defined), 1), torch.zeros(len(defined)))
    known = [library.score(truth, guess) for guess, truth in defined]
    for kind, metric in kinds.items():
        values = metric().score(Examples(blank, guesses), Examples(blank, truths)).tolist()
        for value, theirs, guess, truth in zip(values, known, guesses, truths, strict=True):
            if kind == "rouge2" and len(words(truth)) == 1:
                assert math.isnan(value)
            else:
                both_empty = not guess.strip() and not truth.strip()
                assert value == (1.0 if both_empty else theirs[kind].fmeasure), (guess, truth)


@pytest.mark.parametrize("modality", ["text", "image"])
@pytest.mark.parametrize("seed", range(5))
def test_a_batch_in_any_order_is_recognised_by_every_metric(modality: Modality, seed: int) -> None:
    rng = random.Random(seed)
    lines = rng.sample([*SENTENCES.values(), *WORDLESS], 9)
    pixels = torch.rand(9, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    pixels[:3] = torch.tensor([0.0, 0.5, 1.0]).reshape(3, 1, 1, 1)  # flat images too
    order = rng.sample(range(9), 9)
    truth = texts(*lines) if modality == "text" else images(*pixels)
    mixed = [lines[i] for i in order]
    guess = texts(*mixed) if modality == "text" else images(*pixels[order])
    guess.batch.labels.copy_(torch.tensor(order))
    aligned = align(guess, match(guess, truth, modality), modality)
    for name in metrics(modality):
        values = METRICS[name]().score(aligned, truth).tolist()
        assert is_best(name, values), (name, values)
