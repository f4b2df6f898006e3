"""Certificates on random draws: right guesses get them, wrong ones never; a wrong rule is seen."""

import time
from dataclasses import replace

import pytest

from benchmarks.bench_certificates import against, certificate_rows, differences, recorded
from benchmarks.certificate_draws import IMAGES, MODELS, TEXTS, DrawnCertificate, draw, draws
from docs.measured import ResultFile
from fedsim.errors import ConfigError

_PLAIN = "float32"
DRAWN = DrawnCertificate(0, "mlp", 2, _PLAIN, right=True, tried=("pixel",), wrong=(), message="a")


@pytest.fixture(scope="module")
def drawn() -> list[DrawnCertificate]:
    return [*draws(4 * len(MODELS))]


@pytest.mark.slow
def test_no_wrong_guess_is_certified(drawn: list[DrawnCertificate]) -> None:
    assert [d for d in drawn if d.wrong] == []
    tried = {kind for d in drawn for kind in d.tried}
    assert tried == {*TEXTS, *IMAGES, "class"}
    assert {d.batch for d in drawn} == {1, 2, 3, 4}


@pytest.mark.slow
def test_right_guesses_of_exact_messages_are_certified(drawn: list[DrawnCertificate]) -> None:
    exact = [d for d in drawn if d.update == _PLAIN]
    assert {d.model for d in exact} == set(MODELS)
    assert all(d.right for d in exact)
    assert not any(d.right for d in drawn if d.update == "noise of 0.01 rms")


@pytest.mark.some(5)
@pytest.mark.parametrize("seed", [101, 386, 616, 651, 816])
def test_a_coarse_wire_tells_the_order_of_words(seed: int) -> None:
    drawn = draw(seed)
    assert drawn.right
    assert "order" in drawn.tried
    assert drawn.wrong == ()


def test_a_draw_is_the_same_again(drawn: list[DrawnCertificate]) -> None:
    assert draw(1) == drawn[1]


@pytest.mark.slow
def test_a_wrong_rule_is_seen(
    drawn: list[DrawnCertificate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attacks.proofs.verdict.FLOAT_SUMS", 0.5)
    monkeypatch.setattr("attacks.proofs.verdict.LOOSEST", 0.9)
    texts = [d for d in drawn if d.model.startswith("tiny")][:6]
    planted = [draw(d.seed) for d in texts]
    assert any(d.wrong for d in planted)
    *lines, before, now = differences(texts, planted)
    assert lines[0] == "0 of 6 messages differ"
    assert len(lines) > 1
    assert before.endswith("certified, 0 wrong ones")
    assert not now.endswith("certified, 0 wrong ones")


def test_each_draw_that_differs_has_a_line() -> None:
    less, other = replace(DRAWN, right=False), replace(DRAWN, seed=1, wrong=("pixel",), message="b")
    assert [*differences([DRAWN, replace(other, wrong=(), message="a")], [less, other])] == [
        "1 of 2 messages differ",
        "draw 0, mlp, float32: right before, - now",
        "draw 1, mlp, float32: right before, right and wrong pixel now",
        "before: 2 of 2 right guesses certified, 0 wrong ones",
        "now: 1 of 2 right guesses certified, 1 wrong ones",
    ]


def test_the_result_counts_guesses_and_bounds_draws(drawn: list[DrawnCertificate]) -> None:
    result = ResultFile.model_validate(recorded(drawn, 3.2))
    wrong = {r.setting["model"]: r for r in result.rows if r.setting["guess"] == "wrong guesses"}
    assert {*wrong} == {*MODELS, "all"}
    assert wrong["all"].n == sum(len(d.tried) for d in drawn)
    assert wrong["all"].mean == 0
    assert result.rows[-1].high == pytest.approx(1 - 0.05 ** (1 / len(drawn)), abs=1e-4)
    rows = certificate_rows([replace(DRAWN, wrong=("pixel",))])
    assert [row["mean"] for row in rows[-2:]] == [1, 1]


def test_a_revision_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="--against nowhere: "):
        [*against("nowhere", 1)]


@pytest.mark.slow
def test_a_thousand_draws_take_less_than_four_minutes() -> None:
    begun = time.process_time()
    assert not any(d.wrong for d in draws(1000))
    assert time.process_time() - begun < 240
