"""The tables that judge the defenses: verdicts, adaptive gains, gains over none, certificates."""

from __future__ import annotations

from collections.abc import Iterable

from experiments.analysis.comparison import FEW
from experiments.analysis.evidence import Gap, Reached, Verdict
from experiments.analysis.findings import MARGINS, Spread, TaskFindings
from experiments.analysis.keys import DefenseKey, undefended
from experiments.analysis.statistics import Difference, Estimate
from experiments.analysis.verdicts import LABELS
from experiments.report.naming import attack_label, named_place, place_of, unit_of_main
from experiments.report.tables import Number, Table, Value
from experiments.wording.names import title, utility_unit
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY, STATUSES


def verdict_tables(section: TaskFindings) -> tuple[Table, ...]:
    """Matrix, adaptive, against none, certificates and the null test."""
    where = place_of(section)
    return (
        matrix(section, where),
        adaptive(section, where),
        against_none(section, where),
        certified(section, where),
        null_calls(section, where),
    )


def rule(section: TaskFindings) -> str:
    """How the verdicts follow, in words."""
    unit = unit_of_main(section)
    margin = f"{MARGINS[section.modality]:g}{'' if unit == '1' else f' {unit}'}"
    apart = (
        f", or {margin} of precision or recall of words with the other not surely above it,"
        if section.modality == "text"
        else ""
    )
    words = (
        " A text is judged by its sentences and, apart, by the words of the batch, whose precision "
        "and recall both have to beat every baseline."
    )
    return (
        "Leaks: an attack beats every null baseline on the same victims, with an interval above 0 "
        "at level 1 \N{MINUS SIGN} 0.05 / attacks (Bonferroni), which holds for whichever "
        "attack turns out strongest; its null is the baseline that it beats by less. "
        f"No leak found: every such interval, of {FEW} clients or more, ends below {margin} "
        f"{title(section.main)}{apart} and no job failed. Inconclusive: neither; an interval is "
        "too wide "
        f"where it holds both 0 and {margin}. Labels leak, said beside the verdict: an attack "
        "tells those that were not granted better than every baseline, likewise."
        f"{words if section.modality == 'text' else ''}"
    )


def matrix(section: TaskFindings, where: str) -> Table:
    """One row a defense: utility, strongest attacks, null baselines and the verdict."""
    name = section.utility_name
    metric = title(section.main)
    columns = (
        *("setting", "defense", "realism", title(name or "utility"), "change to none", "epsilon"),
        *("verdict", "why", "victims", "clients", "attacks", *STATUSES),
        *("oblivious attack", f"oblivious {metric}", "adaptive attack", f"adaptive {metric}"),
        *("refused by the oblivious", "refused by the adaptive", "compared both ways"),
        *("adaptive less oblivious", f"best of portfolio {metric}"),
        *("strongest attack", "prior only", "other client", "over the stronger null"),
        *("null", "level of the interval", "label attack", title(LABELS)),
    )
    return Table(
        "matrix",
        f"Defenses by mean {metric} over the victims, intervals clustered by client: {where}. "
        f"{rule(section)} A victim that an attack refused counts with the guess of prior only, "
        "which is what an attacker has left. Best of portfolio attacks each client by what does "
        "best against the others, so that the choice does not flatter the attacker.",
        columns,
        tuple(_matrix_row(section, verdict) for verdict in section.evidence.verdicts),
    )


def _matrix_row(section: TaskFindings, verdict: Verdict) -> tuple[Value, ...]:
    use = useful(section, verdict.place)
    over = verdict.over_null
    return (
        *named_place(verdict.place),
        ", ".join(verdict.levels),
        *use,
        verdict.word,
        "; ".join(verdict.notes),
        *(verdict.victims, verdict.clients, verdict.attacks),
        *(verdict.jobs[status] for status in STATUSES),
        *reached(section, verdict.oblivious),
        *reached(section, verdict.adaptive),
        *(one.refused if one else None for one in (verdict.oblivious, verdict.adaptive)),
        attack_label(section, verdict.gained),
        number(section, verdict.gain),
        number(section, verdict.portfolio),
        reached(section, verdict.strongest)[0],
        *(null_of(section, verdict, kind) for kind in (PRIOR_ONLY, OTHER_CLIENT)),
        number(section, over),
        title(verdict.null) if verdict.null else None,
        Number(over.level) if over else None,
        attack_label(section, verdict.labels),
        told_labels(section, verdict),
    )


def useful(
    section: TaskFindings, place: DefenseKey
) -> tuple[Number | None, Number | None, Number | None]:
    """Utility at the end, its difference to no defense in that setting, and epsilon."""
    name, end = section.utility_name, section.at_end(place)
    if name is None or end is None or name not in end.values:
        return None, None, None
    bases = undefended(one.place for one in section.utility)
    base = section.at_end(bases[place.setting]) if place.setting in bases else None
    compared = base is not None and place.defense != "none"
    change = _utility(end.over_seeds(name, base), name) if compared else None
    epsilon = None if end.epsilon is None else Number(end.epsilon)
    return _utility(end.over_seeds(name), name), change, epsilon


def _utility(found: Spread | None, name: str) -> Number | None:
    return Number(found[0], utility_unit(name), *found[1:]) if found else None


def reached(section: TaskFindings, found: Reached | None) -> tuple[str, Number | None]:
    """The name of an attack, and the mean of the main metric that it got from all victims."""
    if found is None:
        return "", None
    return attack_label(section, found.attacker), number(section, found.leakage)


def told_labels(section: TaskFindings, verdict: Verdict) -> Number | None:
    """How many labels the attack tells that is best at them."""
    result = section.result(verdict.place, verdict.labels) if verdict.labels else None
    found = result.leakage[LABELS] if result else None
    return Number(found.mean, found.unit, found.low, found.high) if found else None


def null_of(section: TaskFindings, verdict: Verdict, kind: str) -> Number | None:
    """The mean of a null baseline of the strongest attack."""
    found = verdict.nulls.get(kind)
    return None if found is None else Number(found, unit_of_main(section))


def number(section: TaskFindings, found: Estimate | Difference | None) -> Number | None:
    """With its interval, in the unit of the main metric."""
    return Number(found.mean, unit_of_main(section), found.low, found.high) if found else None


def adaptive(section: TaskFindings, where: str) -> Table:
    """One row an attack that ran in both variants."""
    return Table(
        "adaptive",
        f"What knowing the defense gains an attack: mean {title(section.main)} of its adaptive and "
        f"its oblivious variant on the same victims, 95 % intervals clustered by client: {where}.",
        _gap_columns("attack", "adaptive", "oblivious", "adaptive less oblivious"),
        tuple(_gap_rows(section, section.evidence.gaps)),
    )


def against_none(section: TaskFindings, where: str) -> Table:
    """One row a defense: what it takes from the strongest attack on it."""
    gaps = section.evidence.against_none
    return Table(
        "against-none",
        f"What a defense changes: mean {title(section.main)} of the strongest attack on it, and of "
        "the same attack on the same victims without a defense; the intervals hold for all "
        "defenses of a setting and all attacks that might have been the strongest together, at "
        f"95 % (Bonferroni), clustered by client: {where}.",
        _gap_columns("strongest attack", "defended", "none", "defended less none"),
        tuple(_gap_rows(section, gaps)),
    )


def certified(section: TaskFindings, where: str) -> Table:
    """One row an attack and defense whose guesses carry certificates."""
    return Table(
        "certified",
        "Reconstructions that the attack itself certified, and how many of these are exact; a "
        "certificate that holds has none that is false, and the Wilson interval, which takes "
        f"examples as independent, says how sure that is: {where}.",
        ("setting", "defense", "attack", "certified", "exact", "false", "rate exact"),
        tuple(
            (
                *named_place(one.place),
                attack_label(section, one.attacker),
                *(one.certified, one.exact, one.certified - one.exact),
                Number(one.exact / one.certified, "1", one.low, one.high)
                if one.certified
                else None,
            )
            for one in section.evidence.certified
        ),
    )


def null_calls(section: TaskFindings, where: str) -> Table:
    """One row a baseline: how often a wrong update would be called a leak against it."""
    return Table(
        "null-calls",
        "The null test: the guess from another client's update is treated as the attack, and "
        "called a leak where its 95 % interval over the baseline lies above 0. Over a second such "
        "guess 2.5 % are expected by chance, and the rate's interval, which takes the tests as "
        "independent, should hold that; over prior only, more calls say that this baseline alone "
        f"is too weak: {where}.",
        ("baseline", "null calls", "of", "rate"),
        tuple(
            (
                title(one.baseline),
                one.called,
                one.tested,
                Number(one.called / one.tested, "1", one.low, one.high),
            )
            for one in section.evidence.null_calls
        ),
    )


def _gap_columns(*names: str) -> tuple[str, ...]:
    return ("setting", "defense", *names, "victims", "clients")


def _gap_rows(section: TaskFindings, gaps: Iterable[Gap]) -> Iterable[tuple[Value, ...]]:
    for gap in gaps:
        yield (
            *named_place(gap.place),
            attack_label(section, gap.attacker),
            Number(gap.value, unit_of_main(section)),
            Number(gap.base, unit_of_main(section)),
            number(section, gap.difference),
            gap.difference.n,
            gap.difference.clusters,
        )
