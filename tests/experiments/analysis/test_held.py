"""What keeps a strength from holding, and what a guess counts for there."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from experiments.analysis.frames import PLACE, jobs_of_attacks, score_frame
from experiments.analysis.held import Errors, Held, Level, Target, hold, surely
from experiments.analysis.keys import DefenseInSetting, VictimKey
from experiments.analysis.paired import Scored, estimate, scored
from experiments.analysis.power import Search
from experiments.analysis.verdicts import Evidence, metrics
from experiments.plan.config import VerdictRule
from fedsim.records import OTHER_CLIENT, OTHER_CLIENTS, PRIOR_ONLY, AttackKey, ScoreRow
from tests.experiments.analysis.cases import row

VERBATIM, MEAN = Target("verbatim", 0.0, share=0.2), Target("rouge1", 0.4)
ERRORS = Errors(0.01, 0.01)
CLIENTS = 40
SPAN = AttackKey("span", "{}", adaptive=False)
NOISE = '[{"name":"gaussian_noise","std":0.1}]'


def guesses(
    attack: str,
    values: Sequence[float],
    exact: Sequence[float] | None = None,
    *,
    certified: bool | None = None,
    rows: Sequence[int] | None = None,
    **more: Any,
) -> list[ScoreRow]:
    """A guess at one text of each client."""
    hits = exact or [0.0] * len(values)
    base = {"attack": attack, "attack_options": "{}", "unit": "1", "defense_options": NOISE}
    return [
        row(
            **{**base, "defense": "gaussian_noise", **more},
            client=client,
            row=rows[client] if rows else client,
            metric=metric,
            value=value,
            certified=certified if metric == "exact_match" else None,
        )
        for client, mean in enumerate(values)
        for metric, value in (("rougeL", mean), ("rouge1", mean), ("exact_match", hits[client]))
    ]


def word(
    *parts: list[ScoreRow],
    targets: Sequence[Target] = (VERBATIM,),
    works: bool = True,
    searches: Mapping[AttackKey, Search] | None = None,
) -> Held:
    known = [one for part in parts for one in part]
    frame = score_frame(known, {"c0": ""})
    seen = Evidence(
        place=DefenseInSetting(*frame[PLACE].iloc[0]),
        here={name: scored(frame, name) for name in (*metrics("text"), "rouge1")},
        modality="text",
        rule=VerdictRule(),
        jobs=jobs_of_attacks(frame),
        working={SPAN: ""} if works else {},
        searches=searches or {},
    )
    return hold(seen, targets, ERRORS)


def blind(value: float = 0.1) -> list[ScoreRow]:
    return guesses(PRIOR_ONLY, [value] * CLIENTS)


def nulls(value: float = 0.1, exact: float = 0.0) -> list[ScoreRow]:
    return [
        one
        for control in (OTHER_CLIENT, OTHER_CLIENTS)
        for one in guesses("span", [value] * CLIENTS, [exact] * CLIENTS, control=control)
    ]


def spread(mean: float) -> list[float]:
    return [mean + (client % 5 - 2) / 50 for client in range(CLIENTS)]


def test_it_holds_where_every_bound_is_below_and_the_attack_works() -> None:
    quiet = word(guesses("span", spread(0.2)), blind(), nulls(), targets=(VERBATIM, MEAN))
    assert (quiet.word, quiet.reasons) == ("holds", ())
    near = word(guesses("span", spread(0.395)), blind(), nulls(), targets=(VERBATIM, MEAN))
    assert (near.word, near.level.target) == ("open", MEAN)
    loud = word(guesses("span", spread(0.6)), blind(), nulls(), targets=(VERBATIM, MEAN))
    assert (loud.word, loud.level.attack) == ("leaks", SPAN)


@pytest.mark.parametrize(
    ("works", "options", "kind"),
    [
        (True, NOISE, None),
        (False, NOISE, "no_control"),
        (True, '[{"name":"ghost"}]', "no_adaptive"),
    ],
)
def test_none_holds_without_an_adapted_attack_that_works(
    works: bool, options: str, kind: str | None
) -> None:
    parts = [guesses("span", spread(0.2), defense_options=options)]
    parts += [guesses(PRIOR_ONLY, [0.1] * CLIENTS, defense_options=options)]
    known = word(*parts, works=works)
    assert [reason.kind for reason in known.reasons] == ([kind] if kind else [])
    assert (known.word == "holds") == (kind is None)


@pytest.mark.parametrize(
    ("status", "kind"),
    [("failed", "failed"), ("timeout", "unfinished"), ("exhausted", "exhausted")],
)
def test_none_holds_where_jobs_were_lost(status: str, kind: str) -> None:
    cut = guesses("span", spread(0.2)[:-1]) + guesses("span", spread(0.2), status=status)[-3:]
    known = word(cut, blind(), nulls())
    assert (known.word, [reason.kind for reason in known.reasons]) == ("open", [kind])


def test_none_holds_where_a_search_ended_too_early() -> None:
    searches = {SPAN: Search(updates=20, errors=5, excess=12.0, unit="nats")}
    known = word(guesses("span", spread(0.2)), blind(), nulls(), searches=searches)
    assert (known.word, known.reasons[0].kind) == ("open", "search_errors")


@pytest.mark.some(3)
@pytest.mark.parametrize(("value", "below"), [(0.1, True), (0.18, False), (0.3, False)])
@pytest.mark.parametrize("target", [MEAN, VERBATIM])
def test_an_attack_below_the_blind_guess_holds_nothing(
    value: float, below: bool, target: Target
) -> None:
    known = word(guesses("span", spread(value)), blind(0.2), nulls(), targets=(target,))
    assert (known.word == "open") == below
    assert [reason.kind for reason in known.reasons] == ["below_blind"] * below


def test_what_comes_back_by_chance_is_no_leak_and_never_holds() -> None:
    one = [1.0] + [0.0] * (CLIENTS - 1)
    certified = word(guesses("span", spread(0.2), one, certified=True), blind(), nulls())
    assert certified.word == "leaks"
    lucky = word(guesses("span", spread(0.2), one), blind(), nulls()[: 3 * CLIENTS])  # one each
    assert lucky.word == "open"
    many = word(guesses("span", [1.0] * CLIENTS, [1.0] * CLIENTS), blind(), nulls())
    assert many.word == "leaks"
    public = word(guesses("span", [1.0] * CLIENTS, [1.0] * CLIENTS), blind(1.0), nulls())
    assert public.word == "holds"  # the blind guess has them, too
    listed = word(guesses("span", [1.0] * CLIENTS, [1.0] * CLIENTS), blind(), nulls(1.0, exact=1.0))
    assert listed.word != "leaks"


def test_a_row_of_many_clients_is_one_row() -> None:
    same = word(
        guesses("span", [0.6] * CLIENTS, rows=[7] * CLIENTS),
        guesses(PRIOR_ONLY, [0.1] * CLIENTS, rows=[7] * CLIENTS),
        targets=(MEAN,),
    )
    assert same.word == "open"


def reached(values: Sequence[float], refused: int = 0) -> Scored:
    victims = [VictimKey(0, client, 1, 0, client) for client in range(len(values))]
    place = DefenseInSetting("", "gaussian_noise", NOISE)
    known = dict(zip(victims, values, strict=True))
    return Scored(place, SPAN, "none", known, frozenset(victims[:refused]))


def test_a_refused_client_supports_no_upper_bound() -> None:
    leaking = [0.8 + client / 100 for client in range(10)]
    alone = estimate(reached(leaking).values, error=0.02)
    half = surely(reached([0.1] * 10 + leaking, refused=10), ERRORS)
    assert half[1] == alone.high
    few = surely(reached([0.1] * 60 + leaking, refused=60), ERRORS)
    assert few[1] == pytest.approx(alone.low)
    assert surely(reached([0.1, 0.2, 0.3]), ERRORS) == (None, None)


def test_a_level_holds_below_its_share_alone_and_with_nobody() -> None:
    level = Level(VERBATIM, SPAN, 100, 0.0, 0.0, 0.05, None)
    assert level.holds
    assert not level._replace(mean=0.01).holds
    assert not level._replace(high=0.2).holds
