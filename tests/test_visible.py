"""No character of data that hides, moves or reorders text reaches a terminal, table or page."""

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.report.page import environment
from experiments.report.tables import Table, to_csv
from fedsim.visible import escaped, inert, say, visible, visible_line

HIDDEN = "\x00\x07\x1b\x7f\x85\x9b\u061c\u200e\u202e\u2066\u2069\u2028\ufeff\ud800\U000e0041\r\x0b"
TEXTS = st.text(
    st.one_of(
        st.sampled_from([*HIDDEN, *"=+-@\t\n,\"';<>&|\\$#", "\uff1d", "é", "\u200d", "א", "👩"]),
        st.characters(),
    ),
    max_size=12,
)
SEEN = re.compile(f"[{re.escape(HIDDEN)}\u202a-\u202e]")
many = settings(max_examples=300, derandomize=True, database=None, deadline=None)


@pytest.mark.parametrize("hidden", HIDDEN)
def test_a_hidden_character_is_seen(hidden: str) -> None:
    shown = visible(f"a{hidden}b")
    assert shown.isascii()
    assert shown == f"a{hidden.encode('unicode_escape').decode()}b"


@pytest.mark.slow
@many
@given(st.text(st.characters(categories=("L", "N", "P", "S", "M", "Zs"))))
def test_letters_of_every_script_stay(text: str) -> None:
    assert visible(text) == text


@many
@given(TEXTS)
def test_no_form_of_a_table_or_page_hides_anything(text: str) -> None:
    key = text or "x"
    table = Table("t", text, ({"name": text, key: 1}, {"name": text, key: None}))
    page = environment().from_string("<p title='{{ x }}'>{{ x }}</p>{{ x|bound }}").render(x=text)
    forms = [to_csv(table), page, escaped(text), inert(text)]
    for form in forms:
        assert not SEEN.search(form)
        form.encode()
    assert visible(visible(text)) == visible(text)
    assert "\n" not in visible_line(text)
    assert "<" not in escaped(text)
    for row in csv.reader(io.StringIO(to_csv(table))):
        assert not row[0].startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"))


@pytest.mark.parametrize("error", [False, True])
def test_a_terminal_is_told_and_not_moved(error: bool, capsys: pytest.CaptureFixture[str]) -> None:
    say("\x1b]0;title\x07\x1b[2Jdone\u202e\ud800\nnext", error=error)
    told = capsys.readouterr()[error]
    assert told == "\\x1b]0;title\\x07\\x1b[2Jdone\\u202e\\ud800\nnext\n"


def test_commands_print_by_one_function_alone() -> None:
    home = Path(__file__).parents[1]
    printing = [
        str(path.relative_to(home))
        for package in ("fedsim", "experiments", "attacks")
        for path in sorted((home / package).rglob("*.py"))
        if re.search(r"(?m)^(?!\s*(?:>>>|\.\.\.)).*(?<![\w.\"])print\(", path.read_text("utf-8"))
    ]
    assert printing == ["fedsim/visible.py"]
