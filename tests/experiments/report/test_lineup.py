"""The same victim stands in one line, whatever the defense, and none that is another."""

from experiments.analysis.evidence import Reached
from experiments.report.gallery import Lineup, lineups
from experiments.stages.gallery import Shown
from fedsim.config.cell import CellConfig
from tests.experiments.report.cases import ADAPTIVE, NOISE, estimate, section, verdict
from tests.experiments.report.cells import DEFENSES, cell_of

CELLS: dict[str, CellConfig] = {
    "none": cell_of("image-classification", DEFENSES[0]),
    "noise": cell_of("image-classification", DEFENSES[2]),
}


def examples(cell: str, *values: float, attack: str = "dlg", shade: int = 0) -> list[Shown]:
    """Examples at the positions 0, 1, 2 ... with these PSNRs."""
    ranked = sorted(range(len(values)), key=lambda i: -values[i])
    return [
        Shown(
            cell=cell,
            attack=attack,
            attack_options="{}",
            round=1,
            client=0,
            example=i,
            rank=ranked.index(i) + 1,
            total=len(values),
            value=values[i],
            certified=None,
            original=bytes([i + shade]),
            guess=bytes([i + shade]),
        )
        for i in range(len(values))
    ]


def lineup(*shown: Shown, untested: bool = False) -> list[Lineup]:
    noise = verdict("not attacked" if untested else "not decided", "gaussian_noise", NOISE)
    findings = section(noise, verdict("leaks"))
    results = tuple(
        result.model_copy(update={"cells": ("none",) if result.defense == "none" else ("noise",)})
        for result in findings.results
    )
    return lineups(findings.model_copy(update={"results": results}), shown, CELLS)


def test_lines_are_ranked_without_a_defense_and_hold_one_victim_each() -> None:
    bare = examples("none", 10.0, 50.0, 30.0, 20.0, 40.0)
    noisy = examples("noise", 5.0, 6.0, 7.0, 8.0, 9.0)
    (lined_up,) = lineup(*noisy, *bare)
    assert [(column.defense, column.attack) for column in lined_up.columns] == [
        ("none", "DLG"),
        ("Gaussian noise (std=0.01)", "DLG"),
    ]
    assert lined_up.ranked == "none"
    assert [line.label for line in lined_up.lines] == [
        *("most leaked, 1 of 5", "median, 3 of 5", "least leaked, 5 of 5")
    ]
    indices = [
        [guess.example if guess else None for guess in line.guesses] for line in lined_up.lines
    ]
    assert indices == [[1, 1], [2, 2], [0, 0]]
    assert [line.guesses[1].value for line in lined_up.lines if line.guesses[1]] == [6, 7, 5]


def test_another_example_at_the_same_position_is_not_shown() -> None:
    (lined_up,) = lineup(*examples("none", 10.0), *examples("noise", 10.0, shade=7))
    assert lined_up.lines[0].label == "the only victim"
    assert lined_up.lines[0].guesses[1] is None


def test_weaker_attacks_are_not_shown() -> None:
    weaker = examples("none", 10.0, attack="inverting")
    (lined_up,) = lineup(*weaker, *examples("none", 99.0), untested=True)
    assert [line.truth.attack for line in lined_up.lines] == ["dlg"]
    assert lined_up.columns[1].attack == ""  # none could run
    assert [line.guesses[1] for line in lined_up.lines] == [None]


def test_without_examples_there_is_no_lineup() -> None:
    assert lineup() == []


def test_the_variant_of_an_attack_counts() -> None:
    reached = Reached(attacker=ADAPTIVE, leakage=estimate(20), refused=0)
    findings = section(verdict("leaks", strongest=reached))
    named = findings.model_copy(
        update={
            "results": tuple(o.model_copy(update={"cells": ("none",)}) for o in findings.results)
        }
    )
    assert lineups(named, examples("none", 10.0), CELLS) == []
    assert len(lineups(named, examples("none", 10.0, attack="lamp"), CELLS)) == 1
