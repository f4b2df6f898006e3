"""What a run's verdicts become in its evidence."""

from experiments.dossier.compile import _persons
from experiments.dossier.record import DOUBTFUL
from tests.experiments.report.cases import clients, section, verdict


def test_exact_returns_that_chance_may_explain_are_counted_apart() -> None:
    open_verdict = verdict("not decided", verbatim=clients(0), exact=clients(2))
    certain = verdict("leaks", verbatim=clients(2), exact=clients(2))
    kinds = [
        {person.kind: person.hit for person in _persons(section(judged))}
        for judged in (open_verdict, certain)
    ]
    assert kinds[0] == {"verbatim": 0, "recognisable": 0, DOUBTFUL: 2}
    assert DOUBTFUL not in kinds[1]
