"""The tables that judge the defenses: verdicts, gains, certificates and the null test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from experiments.analysis.evidence import Clients, Gap, Verdict
from experiments.analysis.findings import TaskFindings
from experiments.analysis.keys import DefenseInSetting
from experiments.analysis.verdicts import LABELS
from experiments.report.beyond import Inferences, inferences_of
from experiments.report.brackets import Bracket
from experiments.report.naming import attack_label, named_place, place_of, unit_of_main
from experiments.report.numbers import label_accuracy, null_of, number, reached, useful
from experiments.report.reasons import phrases
from experiments.report.statements import word_of
from experiments.report.tables import Number, Table, Value
from experiments.wording.names import title
from fedsim.records import OTHER_CLIENT, PRIOR_ONLY, STATUSES, shown


def verdict_tables(section: TaskFindings) -> tuple[Table, ...]:
    """Verdicts, adaptive gains, defenses against none, certificates and the null test."""
    where = place_of(section)
    return (
        matrix(section, where),
        adaptive(section, where),
        against_none(section, where),
        certified(section, where),
        null_calls(section, where),
    )


def rule(section: TaskFindings) -> str:
    """How the verdicts follow from counts and intervals, for the reader of the page."""
    unit = unit_of_main(section)
    effects = {verdict.smallest for verdict in section.evidence.verdicts}
    smallest = f"{min(effects, default=0):g}{'' if unit == '1' else f' {unit}'}"
    words = (
        " Words leak if precision and recall of the words of the batch are both that far above."
        if section.modality == "text"
        else ""
    )
    return (
        "Leaks, verbatim: examples came back exactly, certified or where no blind guess is exact. "
        "Recognisable: more clients than chance explains have an example above the threshold. "
        "Better than guessing: the mean is above every null baseline on the same victims by more "
        f"than {smallest} {title(section.main)}, at level 1 \N{MINUS SIGN} 0.05 / attacks "
        f"(Bonferroni).{words} No leak found: every mean is below that at the same level, no job "
        "failed, and an attack that works without a defense, adapted to it under one, has tried. "
        "Labels leak: an attack infers withheld labels better than every baseline. Not decided: "
        "none of these."
    )


def matrix(section: TaskFindings, where: str) -> Table:
    """One row per defense: utility, strongest attacks, null baselines and the verdict."""
    name = section.utility_name
    metric = title(section.main)
    columns = (
        *("setting", "defense", "realism", title(name or "utility"), "change to none", "epsilon"),
        *(
            "verdict",
            "severity",
            "why",
            "clients verbatim",
            "clients recovered",
            "victims",
            "clients",
            "attacks",
            *map(shown, STATUSES),
        ),
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
        "which is all that an attacker would have. Best of portfolio: each client is attacked by "
        "the attack that does best against all other clients, so that the choice does not flatter "
        "the attacker.",
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
        *(verdict.word, *_graded(section, verdict)),
        *(_share(clients) for clients in (verdict.verbatim, verdict.recovered)),
        *(verdict.victims, verdict.clients, verdict.attacks),
        *(verdict.jobs[status] for status in STATUSES),
        *reached(section, verdict.oblivious),
        *reached(section, verdict.adaptive),
        *(best.refused if best else None for best in (verdict.oblivious, verdict.adaptive)),
        attack_label(section, verdict.gained),
        number(section, verdict.gain),
        number(section, verdict.portfolio),
        reached(section, verdict.strongest)[0],
        *(null_of(section, verdict, kind) for kind in (PRIOR_ONLY, OTHER_CLIENT)),
        number(section, over),
        title(verdict.null) if verdict.null else None,
        Number(over.level) if over else None,
        attack_label(section, verdict.labels),
        label_accuracy(section, verdict),
    )


def _graded(section: TaskFindings, verdict: Verdict) -> tuple[Value, ...]:
    """The columns ``severity`` and ``why``."""
    return verdict.grade, "; ".join(phrases(section, verdict))


def _share(known: Clients) -> Number | None:
    """Share of clients, with the one-sided bounds at 95 %."""
    return Number(known.hit / known.of, "1", known.low, known.high) if known.of else None


def defense_table(
    section: TaskFindings,
    inferences: Sequence[Inferences],
    brackets: Mapping[DefenseInSetting, Bracket],
) -> Table:
    """Few columns of the matrix, a row a defense and setting, and what else is known of it."""
    return Table(
        "defenses",
        f"Each defense under the strongest attack on it: mean {title(section.main)} with its 95 % "
        "interval.",
        (
            *("setting", "defense", "verdict", "severity", "why", "clients verbatim"),
            *("strongest attack", "metric", "leakage"),
            *("blind guess", "lead over it", "utility metric", "utility", "utility change"),
            *("victims", "clients", "AUC of membership", "epsilon audited"),
            *("leaks", "bounded by"),
        ),
        tuple(
            _brief_row(
                section,
                verdict,
                inferences_of(inferences, verdict.place),
                brackets.get(verdict.place),
            )
            for verdict in section.evidence.verdicts
        ),
    )


def _brief_row(
    section: TaskFindings, verdict: Verdict, inferred: Inferences | None, bracket: Bracket | None
) -> tuple[Value, ...]:
    attack, leaked = reached(section, verdict.strongest)
    measure, change, _ = useful(section, verdict.place)
    return (
        *named_place(verdict.place),
        *(word_of(section, verdict), *_graded(section, verdict)),
        verdict.verbatim.hit,
        attack,
        title(section.main),
        leaked,
        null_of(section, verdict, verdict.null) if verdict.null else None,
        number(section, verdict.over_null),
        title(section.utility_name or ""),
        measure,
        change,
        verdict.victims,
        verdict.clients,
        inferred.members if inferred else None,
        inferred.epsilon if inferred else None,
        bracket.said if bracket else None,
        bracket.why if bracket else None,
    )


def adaptive(section: TaskFindings, where: str) -> Table:
    """One row per attack that ran in both variants."""
    return Table(
        "adaptive",
        f"What knowing the defense gains an attack: mean {title(section.main)} of its adaptive and "
        "its oblivious variant on the same victims; the intervals, clustered by client, hold at "
        f"95 % for all of these together (Bonferroni): {where}.",
        _gap_columns("attack", "adaptive", "oblivious", "adaptive less oblivious"),
        tuple(_gap_rows(section, section.evidence.gaps)),
    )


def against_none(section: TaskFindings, where: str) -> Table:
    """One row per defense: how much it changes the strongest attack on it."""
    gaps = section.evidence.against_none
    return Table(
        "against-none",
        f"What a defense changes: mean {title(section.main)} of the strongest attack on it, and of "
        "the same attack on the same victims without a defense. The intervals, clustered by "
        "client, hold at 95 % for all defenses of a setting and all candidates for the strongest "
        f"attack together (Bonferroni): {where}.",
        _gap_columns("strongest attack", "defended", "none", "defended less none"),
        tuple(_gap_rows(section, gaps)),
    )


def certified(section: TaskFindings, where: str) -> Table:
    """One row per defense and attack that certifies guesses."""
    return Table(
        "certified",
        "Reconstructions that the attack itself certified as exact, and how many of them are. A "
        "sound certificate is never false; how sure that is, the interval over clients says: "
        f"{where}.",
        ("setting", "defense", "attack", "certified", "exact", "false", "rate exact"),
        tuple(
            (
                *named_place(count.place),
                attack_label(section, count.attacker),
                *(count.certified, count.exact, count.certified - count.exact),
                Number(count.exact / count.certified, "1", count.low, count.high)
                if count.certified
                else None,
            )
            for count in section.evidence.certified
        ),
    )


def null_calls(section: TaskFindings, where: str) -> Table:
    """One row per baseline: how often a mismatched update is called a leak against it."""
    return Table(
        "null-calls",
        "The null test, a check of the verdicts: for every other client the guess from another "
        "client's update takes the place of the attack, and is called a leak if the 95 % interval "
        "of its difference to the baseline lies above 0. Against a second guess of that kind, "
        "2.5 % of the calls are expected by chance; tests share victims, so that the rate has no "
        "interval. Against prior only, a higher rate means that this baseline alone is too weak: "
        f"{where}.",
        ("baseline", "null calls", "of", "rate"),
        tuple(
            (
                title(null_call.baseline),
                null_call.called,
                null_call.tested,
                Number(null_call.called / null_call.tested, "1"),
            )
            for null_call in section.evidence.null_calls
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
