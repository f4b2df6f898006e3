"""Each sentence says what its verdict says, and no more: by reason, as the words are a writer's."""

import math
import re
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from experiments.analysis.evidence import Kind, Reached, Reason, Verdict, Word
from experiments.analysis.findings import Problem, TaskFindings
from experiments.report.details import phrase, recovered
from experiments.report.first_screen import costs
from experiments.report.headline import closing_rows, closing_table
from experiments.report.page import attackers
from experiments.report.statements import Statement, answers, certainty, names, overall
from experiments.wording.catalogue import Said, sentences
from experiments.wording.threat import ThreatModel
from fedsim.records import STATUSES
from tests.experiments.report.cases import (
    ADAPTIVE,
    DLG,
    FROZEN,
    NOISE,
    clients,
    estimate,
    over,
    result,
    section,
    utility,
    verdict,
)

PRUNE = '[{"fraction":0.9,"name":"prune"}]'
WORDS = get_args(Word)


def noise(word: Word, **given: Any) -> Verdict:
    return verdict(word, "gaussian_noise", NOISE, **given)


def statements(*verdicts: Verdict, **given: Any) -> tuple[Statement, ...]:
    (answer,) = answers(section(*verdicts, **given))
    return answer.statements


def brief(*verdicts: Verdict) -> list[str]:
    (answer,) = answers(section(*verdicts))
    return [statement.lead.reason for statement in answer.brief]


def details(statement: Statement) -> dict[str, Said]:
    return {said.reason.removeprefix("detail."): said for said in statement.details}


@pytest.mark.parametrize("word", WORDS)
def test_a_lead_for_each_word(word: Word) -> None:
    bare, defended = statements(verdict(word), noise(word))
    kind = "leaks.recognisable" if word == "leaks" else word
    idle = ".idle" if word == "no leak found" else ""
    assert (bare.lead.reason, bare.word) == (f"verdict.{kind}", word)
    assert defended.lead.reason == f"verdict.{kind}{idle}"
    assert str(bare.lead.facts["where"]).startswith("without a defense")
    assert str(defended.lead.facts["where"]).startswith("under Gaussian noise (std=0.01)")
    assert str(bare.lead).endswith(".")


@pytest.mark.parametrize("grade", ["verbatim", "recognisable", "words", "better than guessing"])
def test_a_lead_for_each_grade(grade: str) -> None:
    (one,) = statements(verdict("leaks", grade=grade, verbatim=clients(3)), modality="text")
    assert (one.lead.reason, one.grade) == (f"verdict.leaks.{grade}", grade)
    hit = {"verbatim": "(3 of 8 clients", "recognisable": "(6 of 8 clients"}.get(grade)
    assert ("clients" in str(one.lead)) == (hit is not None)
    assert hit is None or hit in str(one.lead)


def test_defenses_of_one_verdict_are_said_together_the_worst_first() -> None:
    prune = verdict("not decided", "prune", PRUNE)
    bare = verdict("leaks", grade="verbatim")
    (answer,) = answers(section(bare, noise("not decided"), prune))
    leak, open_ = answer.brief
    assert (leak.lead.reason, open_.lead.reason) == (
        "verdict.leaks.verbatim",
        "verdict.not decided",
    )
    where = "under Gaussian noise (std=0.01) and pruning (fraction=0.9)"
    assert open_.lead.facts["where"] == where
    assert [one.name for one in answer.statements][1:] == [
        "Gaussian noise (std=0.01)",
        "pruning (fraction=0.9)",
    ]
    assert names(list("abcdef")) == "a, b, c and 3 more"
    assert names(list("abcd")) == "a, b, c and d"


def test_each_setting_has_an_answer() -> None:
    here, there = verdict("leaks", setting="batch_size=1"), verdict("not decided", setting="b=2")
    assert [answer.setting for answer in answers(section(here, there))] == ["batch_size=1", "b=2"]
    assert answers(section()) == []


def test_the_numbers_of_a_leak() -> None:
    (one,) = statements(verdict("leaks"))
    facts = details(one)["recovered"].facts
    assert (facts["attack"], facts["count"], facts["of"]) == ("DLG", 6, 8)
    assert (facts["mean"], "12.0 dB" in str(facts["against"])) == ("20.0 dB", True)


def test_words_leak_without_their_order() -> None:
    words = verdict("leaks", grade="words", over_null=over(-1, 3))
    (one,) = statements(words, modality="text")
    facts = details(one)["words"].facts
    assert (facts["recall"], facts["precision"]) == ("88 %", "50 %")
    assert "recovered" not in details(one)


def test_holding_says_how_much_is_not_ruled_out() -> None:
    (one,) = statements(noise("no leak found"))
    facts = details(one)["bounded"].facts
    assert (facts["most"], facts["share"]) == ("at most 0.5 dB", "31 %")


def test_false_certificates_come_first() -> None:
    wrong = Reason(kind="false_certificates", attack=DLG, numbers={"false": 2.0, "certified": 9.0})
    (one,) = statements(verdict("leaks", reasons=(wrong,)))
    assert one.details[0].reason == "detail.false"
    assert "2 of the 9" in str(one.details[0])


@pytest.mark.parametrize("word", ["leaks", "no leak found", "not decided"])
def test_labels_leak_beside_every_verdict(word: Word) -> None:
    _, one = statements(verdict("leaks"), noise(word, labels=DLG))
    assert sentences()["verdict.labels"] in str(one.lead)
    assert details(one)["labels"].facts["share"] == "75 %"


@pytest.mark.parametrize(("refused", "said"), [(3, "refused"), (4, "refused"), (5, "hardly")])
@pytest.mark.parametrize("word", ["not decided", "no leak found", "leaks"])
def test_refused_victims_are_counted_once(word: Word, refused: int, said: str) -> None:
    strongest = Reached(attacker=DLG, leakage=estimate(20), refused=refused)
    _, one = statements(verdict("leaks", beating=(DLG,)), noise(word, strongest=strongest))
    known = {"hardly", "refused"} & details(one).keys()
    assert known == ({"refused"} if word == "leaks" else {said})
    assert details(one)[known.pop()].facts["refused"] == refused


def test_an_attack_that_fails_without_a_defense_tests_none() -> None:
    for beating, weak in (((ADAPTIVE,), True), ((DLG,), False)):
        _, one = statements(verdict("leaks", beating=beating), noise("not decided"))
        assert ("weak" in details(one)) == weak


def test_a_skipped_attack_is_no_defense_that_holds() -> None:
    _, one = statements(verdict("leaks"), noise("not attacked"))
    assert details(one)["untested"].facts == {"jobs": "8 jobs", "why": f": DLG: {FROZEN}"}
    row = next(closing_rows(section(verdict("not attacked"))))
    assert row.defense == "no defense"
    assert FROZEN in row.refused
    some = dict.fromkeys(STATUSES, 0) | {"done": 5, "skipped": 3}
    (partly,) = statements(noise("no leak found", jobs=some))
    assert details(partly)["skipped"].facts["jobs"] == "3 jobs"
    (alone,) = statements(noise("not attacked", jobs=dict.fromkeys(STATUSES, 0)))
    assert details(alone).keys() == {"unrun"}


def test_an_attack_that_refused_everything_is_named_with_its_reason() -> None:
    lamp = result(verdict("not attacked"), "psnr", 0.0).model_copy(update={"attack": "lamp"})
    known = section(verdict("leaks"))
    both = known.model_copy(update={"results": (*known.results, lamp)})
    (answer,) = answers(both)
    facts = details(answer.statements[0])["refused_wholly"].facts
    assert facts == {"attack": "LAMP", "why": f": {FROZEN}"}
    row = next(closing_rows(both))
    assert (row.blind, FROZEN in row.refused) == ("12", True)
    hidden = ThreatModel((), (), (), (), ())
    chapters: Any = [SimpleNamespace(section=both, threat=hidden)]
    assert "1 attack: DLG. LAMP could" in attackers(chapters)


def test_what_an_attack_notes_stands_with_the_verdict() -> None:
    known = section(verdict("leaks"), noise("not decided"))
    bare, open_ = known.results
    note = Problem(status="done", reason="no rows stand out of the noise", jobs=8)
    noted = open_.model_copy(update={"problems": (note,)})
    (answer,) = answers(known.model_copy(update={"results": (bare, noted)}))
    assert details(answer.statements[1])["noted"].facts["note"] == note.reason


VARIANTS: list[Reason] = [
    Reason(kind="no_null", baseline="other_client"),
    Reason(kind="wide", attack=DLG, baseline="prior_only", numbers={"needed": math.inf}),
    Reason(kind="beats_one", metric="rougeL"),
    Reason(kind="unrun", numbers={"failed": 2.0}),
    Reason(kind="members", metric="membership_auc", numbers={"mean": 0.6, "lost": 2.0}),
    Reason(kind="answered", attack=DLG, numbers={"victims": 3.0, "of": 8.0}),
]
NUMBERS = {
    name: 3.0
    for pattern in sentences().values()
    for name in re.findall(r"\{(\w+):\.\df\}", pattern)
} | {"clients": 3.0, "jobs": 1.0, "mean": 0.5, "low": -1.0, "high": 2.0}


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_of_reason_has_a_sentence(kind: Kind) -> None:
    reason = Reason(kind=kind, attack=DLG, baseline="prior_only", metric="psnr", numbers=NUMBERS)
    assert str(phrase(section(verdict("leaks")), reason))


@pytest.mark.parametrize("reason", VARIANTS, ids=lambda reason: reason.kind)
def test_every_variant_of_a_reason_has_a_sentence(reason: Reason) -> None:
    said = phrase(section(verdict("leaks")), reason)
    assert said.reason in {f"why.{reason.kind}", *sentences()}
    assert "nan" not in str(said)


def test_reasons_hold_their_numbers() -> None:
    facts = {"needed": 72.0, "mean": 0.5, "low": -1.0, "high": 2.0}
    wide = Reason(kind="wide", attack=DLG, baseline="prior_only", metric="psnr", numbers=facts)
    said = str(phrase(section(verdict("leaks")), wide))
    assert "DLG over prior only is 0.5 [\N{MINUS SIGN}1.0, 2.0] dB" in said
    assert "72 clients" in said


def test_an_open_verdict_says_its_reasons_once() -> None:
    twice = (Reason(kind="few_clients", numbers={"clients": 3.0, "needed": 5.0}),) * 2
    beside = Reason(kind="skipped", numbers={"jobs": 2.0})
    (one,) = statements(noise("not decided", reasons=(*twice, beside)))
    assert details(one)["open"].facts["reasons"] == str(phrase(section(), twice[0]))


SAME = {0: 0.5, 1: 0.6}


def costs_of(findings: TaskFindings) -> list[tuple[str, str]]:
    return [(said.reason, str(said)) for _, each in costs(findings) for said in each]


@pytest.mark.parametrize(
    ("defended", "reason", "change"),
    [
        ({0: 0.49}, "move", "0.490 (\N{MINUS SIGN}0.010, in one training)"),
        ({0: 0.49, 1: 0.61}, "move", ", which may be chance)"),
        ({0: 0.3, 1: 0.401}, "move", "(\N{MINUS SIGN}0.199 ["),
        ({0: 0.7, 1: 0.801}, "move", "(+0.201 ["),
        ({0: math.nan}, "lost", "diverges"),
    ],
)
def test_what_a_defense_costs(defended: dict[int, float], reason: str, change: str) -> None:
    bare = {seed: SAME[seed] for seed in defended}
    seeds = {"none": bare, "gaussian_noise": defended}
    ((said, text),) = costs_of(section(verdict("leaks"), noise("no leak found"), seeds=seeds))
    assert said == f"cost.{reason}"
    assert change in text


def test_costs_of_a_model_that_did_not_learn_cannot_be_told() -> None:
    one = {"none": {0: 0.5}, "gaussian_noise": {0: 0.3}, "prune": {0: 0.1}}
    prune = verdict("not attacked", "prune", PRUNE)
    findings = section(verdict("leaks"), noise("leaks"), prune, seeds=one)
    assert [reason for reason, _ in costs_of(findings)] == ["cost.move"]
    for first, last in ((0.1, "cost.move"), (0.5, "cost.unlearned")):
        start = utility(verdict("leaks"), {0: first}).model_copy(update={"round": 0})
        begun = findings.model_copy(update={"utility": (start, *findings.utility)})
        assert [reason for reason, _ in costs_of(begun)] == ["cost.training", last]
    assert costs(section(verdict("leaks"), noise("leaks"))) == []


def kinds(said: list[Said]) -> list[str]:
    return [one.reason.removeprefix("overall.") for one in said]


def test_a_defense_is_judged_by_its_worst_task() -> None:
    prune, bare = verdict("not attacked", "prune", PRUNE), verdict("leaks")
    holds = noise("no leak found")
    assert kinds(overall([section(bare)])) == ["untested"]
    (held,) = overall([section(holds), section(prune)])
    assert (held.reason, held.facts["who"]) == ("overall.held", "Gaussian noise (std=0.01)")
    assert kinds(overall([section(holds), section(noise("leaks"), prune)])) == ["nothing"]
    assert kinds(overall([section(bare, noise("holds by bound"))])) == ["bound"]
    labels = noise("labels leak", rows="no leak found", labels=DLG)
    assert kinds(overall([section(bare, labels)])) == ["nothing"]


@pytest.mark.parametrize("word", ["no leak found", "not decided", "not attacked"])
def test_a_defense_gets_no_credit_where_nothing_leaked(word: Word) -> None:
    findings = section(verdict(word), noise("no leak found"))
    assert kinds(overall([findings])) == ["nothing"]
    assert "verdict.no leak found.idle" in brief(verdict(word), noise("no leak found"))


def test_how_sure() -> None:
    many = certainty([section(verdict("leaks"))], {0})
    assert (many.facts["victims"], many.facts["clients"]) == ("8 victims", "8 clients")
    assert (many.facts["trainings"], many.facts["few"]) == ("1 training", "")
    few = certainty([section(verdict("leaks"), verdict("leaks", clients=3))], {0, 1})
    assert (few.facts["clients"], few.facts["trainings"]) == ("3 to 8 clients", "2 trainings")
    assert few.facts["few"]
    assert certainty([section(verdict("not attacked"))], {0}).reason == "sure.nothing"


def test_recovered_counts_over_all_victims() -> None:
    findings = section(verdict("leaks", victims=10))
    assert recovered(findings, findings.evidence.verdicts[0]) == (6, 10)


def test_a_terminal_names_what_leaks_before_the_rest() -> None:
    held = [verdict("no leak found", "gaussian_noise", f'[{{"std":{i}}}]') for i in range(3)]
    known = section(verdict("leaks"), *held, verdict("labels leak", "prune", PRUNE))
    first, second, *_ = rows = list(closing_rows(known))
    assert (first.defense, first.mean, first.blind) == ("no defense", "psnr 20", "12")
    assert (second.defense, second.verdict) == ("pruning (fraction=0.9)", "labels leak")
    lines = closing_table(rows).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["defense", *(row.defense for row in rows)]
    assert len({line.index(row.verdict) for line, row in zip(lines[1:], rows, strict=True)}) == 1
    assert closing_table(rows * 3).splitlines()[-1].startswith("and 3 more")
