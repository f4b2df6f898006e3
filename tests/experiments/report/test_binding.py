"""What belongs together is not broken, and what is hostile stays text."""

import re

import pytest

from experiments.report.templates import Binder


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("88 % of them", ["88 %"]),
        ("a lead of 0.1 [\N{MINUS SIGN}0.3, 0.4] dB", ["[\N{MINUS SIGN}0.3, 0.4] dB"]),
        ("1,400.5 dB for tiny-gpt2", ["1,400.5 dB", "tiny-gpt2"]),
        ("Gaussian noise (std=1e-4), text-free", ["std=1e-4"]),
        ("well-known and so on", []),
    ],
)
def test_what_is_kept_together(text: str, bound: list[str]) -> None:
    marked = Binder()(text)
    assert re.findall(r'<span class="span">(.*?)</span>', marked) == bound
    assert re.sub(r"<[^>]*>", "", marked) == text


def test_a_measure_is_explained_once() -> None:
    bind = Binder()
    first = bind("a mean PSNR of 20.0 dB, and PSNR again")
    assert first.count("<abbr") == 1
    assert 'title="peak signal-to-noise ratio of an image, in decibels' in first
    assert "<abbr" not in bind("PSNR")
    assert "<abbr" in bind("ROUGE-L")


def test_hostile_text_is_escaped() -> None:
    assert "<script" not in Binder()("<script>1 %</script>, a=<script> and [<b>, <b>]")
