import csv
import io
import math

import pytest

from experiments.report.tables import Number, Table, Value, to_csv, to_terminal
from experiments.wording.names import differing, duration, natural, show, title

TEXTS = ('dlg & <script>, "x" | a_b*c', r"\input{x} $1^2$ ~#%[k]" + "\n")
TABLE = Table(
    "1-leakage",
    "100 % of a_b | <all>",
    (
        {"attack": TEXTS[0], "n": 12345, "PSNR ↑": Number(1 / 3, "1", 0.25, 0.5)},
        {"attack": TEXTS[1], "n": 0},
    ),
)


def test_csv_holds_no_formula() -> None:
    texts = ("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "plain")
    table = Table("t", "", tuple({"=a": text, "b": Number(-1.5)} for text in texts))
    header, *lines = csv.reader(io.StringIO(to_csv(table)))
    assert header == ["'=a", "b"]
    assert [line[0] for line in lines] == [*(f"'{text}" for text in texts[:-1]), "plain"]
    assert {line[1] for line in lines} == {"-1.5"}


def test_csv_keeps_every_digit_and_every_character() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows[0] == ["attack", "n", "PSNR ↑", "PSNR ↑ low", "PSNR ↑ high"]
    assert rows[1] == [TEXTS[0], "12345", "0.3333333333333333", "0.25", "0.5"]
    assert rows[2] == [TEXTS[1], "0", "", "", ""]


def test_a_terminal_shows_plain_columns() -> None:
    first: dict[str, Value] = {"attack": "a_b", "n": 12345}
    known = Table("t", "kl(m || b) <= nats", (first, {"attack": "dlg"}))
    assert to_terminal(known) == (
        "kl(m || b) <= nats\n\nattack       n\na_b     12,345\ndlg          \N{EN DASH}\n"
    )
    assert r"~#%[k]\n" in to_terminal(TABLE)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.98765, "1", "0.99"),
        (-0.5, "1", "\N{MINUS SIGN}0.50"),
        (31.249, "dB", "31.2"),
        (0.0016, "squared pixel", "0.00160"),
        (1e-7, "squared pixel", "1.00e\N{MINUS SIGN}07"),
        (2.0, "", "2.00"),
        (123.4, "", "123"),
        (23456.7, "", "23,457"),
        (math.inf, "dB", "∞"),
        (-math.inf, "", "\N{MINUS SIGN}∞"),
        (math.nan, "", "\N{EN DASH}"),
        (None, "1", "\N{EN DASH}"),
        (-0.04, "dB", "0.0"),
        (-0.06, "dB", "\N{MINUS SIGN}0.1"),
        (999.98, "", "1,000"),
        (0.087, "rate", "0.087"),
    ],
)
def test_numbers(value: float | None, unit: str, text: str) -> None:
    assert show(value, unit) == text


def test_names_and_durations() -> None:
    assert title("rougeL") == "ROUGE-L"
    assert title("embedding_rows") == "embedding rows"
    assert title("dlg_text") == "DLG (text)"
    assert [duration(seconds) for seconds in (4.2, 61.0, 1200.0, 9000.0)] == [
        *("4 s", "61 s", "20 min", "2.5 h")
    ]


def test_only_options_that_differ_are_named() -> None:
    a, b = '{"steps":300,"tv":0.1}', '{"steps":50,"tv":0.1}'
    assert differing(a, [a, b]) == "steps=300"
    assert differing(a, [a]) == ""


def test_numbers_in_names_sort_by_value() -> None:
    names = ["std=0.1", "std=1e-3", "std=0.02", "batch_size=16", "batch_size=4"]
    assert sorted(names, key=natural) == [
        "batch_size=4",
        "batch_size=16",
        "std=1e-3",
        "std=0.02",
        "std=0.1",
    ]
