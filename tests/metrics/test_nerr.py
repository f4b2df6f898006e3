import math

import pytest
import torch

from fedsim.metrics import METRICS
from fedsim.metrics.base import Examples
from fedsim.metrics.nerr import NamedEntityRecovery, RuledEntityRecovery
from fedsim.types import Batch


def texts(*words: str) -> Examples:
    return Examples(Batch(torch.zeros(len(words), 1), torch.zeros(len(words))), words)


def rate(guess: str, truth: str) -> float:
    values = RuledEntityRecovery().score(texts(guess), texts(truth))
    assert values.dtype == torch.float64
    return values.item()


# Text -> its entities, the words of each in one string.
ENTITIES: dict[str, set[str]] = {
    "A dog sat on the mat.": set(),
    "": set(),
    # The first word of a sentence is left out, whatever it is.
    "Yesterday Ann Lee went to New York.": {"Ann Lee", "New York"},
    "Enron fell. Then Skilling left!": {"Skilling"},
    "The Bank of America and Ludwig van Beethoven met.": {
        "Bank of America",
        "Ludwig van Beethoven",
    },
    "The end of the day of June": {"June"},
    "We saw IBM. NASA called; I did not.": {"IBM", "NASA"},
    "We met Mr. O'Brien and J. K. Rowling at AT&T.": {"Mr O Brien", "J K Rowling", "AT T"},
    'He said, "Titanic is what Cameron made."': {"Cameron"},
    "It cost $1,000 at 10:30, or 5%": {"1 000", "10 30", "5"},
    "They met on March 5, 2019 and on 6 may 2020": {"March 5", "2019", "6 may 2020"},
    "a march on monday in may": {"monday"},
    "mail bob.lee@mail.enron.com. Then ask": {"bob lee mail enron com"},
    "WE WILL MEET ANN ON MONDAY AT 5": {"MONDAY", "5"},
    "john smith met ann on 4 july": {"4 july"},
}
# The same as a WordPiece tokenizer decodes it.
SPACED: dict[str, set[str]] = {
    "We met Mr . O ' Brien and J . K . Rowling .": {"Mr O Brien", "J K Rowling"},
    "It cost $ 1 , 000 at 10 : 30 .": {"1 000", "10 30"},
    "mail lee @ enron . com . Then ask": {"lee enron com"},
    "in @-@ between 1 @,@ 000 and 2 @.@ 5": {"1 000", "2 5"},
}


@pytest.mark.parametrize("text", [*ENTITIES, *SPACED])
def test_rules_find(text: str) -> None:
    found = {" ".join(entity) for entity in RuledEntityRecovery().entities(text)}
    assert found == {**ENTITIES, **SPACED}[text]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("On Monday Ann Lee paid $1,000 to IBM.", {"Ann Lee", "IBM"}),
        ("We met on 4 July and I paid 5%, see bob.lee@mail.enron.com.", set()),
        ("Ann went home.", set()),
    ],
)
def test_names_are_the_entities_that_are_no_date_number_or_address(
    text: str, names: set[str]
) -> None:
    assert {" ".join(name) for name in RuledEntityRecovery().names(text)} == names


def test_the_rate_is_the_share_of_distinct_entities_that_stand_whole_in_the_guess() -> None:
    truth = "He told Ann Lee of 1999, and Ann Lee told New York."
    assert rate("we know Ann Lee", truth) == pytest.approx(1 / 3)
    assert rate("Ann and Lee saw York", truth) == 0.0
    assert rate("Ann Leeds in New Yorkshire", truth) == 0.0
    assert rate("ann lee", truth) == 0.0
    assert rate("1999 Ann - Lee, of New York", truth) == 1.0
    assert rate(truth, truth) == 1.0
    assert rate("", truth) == 0.0


def test_a_text_without_entities_has_no_value_whatever_the_guess() -> None:
    for guess in ("", "the cat", "Ann Lee in 1999"):
        assert math.isnan(rate(guess, "the cat sat"))
    values = RuledEntityRecovery().score(texts("a 7", "b"), texts("see 7", "b")).tolist()
    assert values[0] == 1.0
    assert math.isnan(values[1])


def test_names_of_an_uncased_text_are_not_found_and_so_have_no_value() -> None:
    assert math.isnan(rate("ann lee", "he told ann lee of new york"))
    assert rate("in 1999", "he told ann lee in 1999") == 1.0


def test_the_two_have_names_of_their_own_and_the_missing_one_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    present = {"spacy"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in present else None)
    assert METRICS["nerr_rules"]().available() == ""
    assert METRICS["nerr"]().available() == (
        "its model is missing; run python -m spacy download en_core_web_sm, or use 'nerr_rules'"
    )
    present.clear()
    assert METRICS["nerr"]().available() == (
        "spaCy is not installed; run pip install -e '.[entities]', or use 'nerr_rules'"
    )


def test_spacy_finds_names_at_the_start_of_a_sentence() -> None:
    metric = NamedEntityRecovery()
    if reason := metric.available():
        pytest.skip(reason)
    assert ("John", "Smith") in metric.entities("John Smith went to New York.")
    assert metric.names("John Smith paid $ 5 on Monday.") == {("John", "Smith")}
    values = metric.score(
        texts("to New York", "x"), texts("John Smith went to New York.", "it is so")
    )
    assert values[0] == 0.5
    assert math.isnan(values[1])
