"""Facts with a source: none stands in for a surer one, and who needs a sure one asks for it."""

import itertools
import json

import pytest

from fedsim.knowledge import SOURCES, Fact, Knowledge, Origin, Source

STEPS: Fact = "local_steps"
WEAKER = [
    (a, b) for a, b in itertools.product(SOURCES, SOURCES) if SOURCES.index(a) <= SOURCES.index(b)
]


def known(source: Source, value: int) -> Knowledge:
    if source == "stated":
        return Knowledge(local_steps=value)
    return Knowledge().adding({STEPS: value}, Origin(source=source))


@pytest.mark.parametrize(("first", "second"), WEAKER)
def test_a_fact_never_overrules_one_as_sure(first: Source, second: Source) -> None:
    facts = known(first, 4)
    assert facts.adding({STEPS: 3}, Origin(source=second)) == facts


@pytest.mark.parametrize("source", SOURCES)
def test_who_needs_a_sure_fact_misses_a_weaker_one(source: Source) -> None:
    facts = known(source, 4)
    for needed in SOURCES:
        sure = SOURCES.index(source) <= SOURCES.index(needed)
        assert facts.has(STEPS, needed) == sure
        assert facts.missing(frozenset({STEPS}), needed) == ([] if sure else [STEPS])
    assert not Knowledge().has(STEPS)


def test_an_interval_is_kept_and_records_of_stated_facts_are_as_before() -> None:
    origin = Origin(source="inferred", low=0.8, high=1.67)
    facts = Knowledge().adding({"learning_rate": 1.0}, origin)
    again = Knowledge.model_validate_json(facts.model_dump_json())
    assert again == facts
    assert again.origins == {"learning_rate": origin}
    assert "origins" not in json.loads(Knowledge(learning_rate=1.0).model_dump_json())
