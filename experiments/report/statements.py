"""A verdict as a statement with its numbers: leakage, the null baseline, labels, cost, refusals."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.analysis.evidence import Verdict, Word
from experiments.analysis.findings import TaskFindings
from experiments.analysis.membership import METRICS
from experiments.analysis.verdicts import WORDS
from experiments.report.costs import cost
from experiments.report.doubts import (
    doubt,
    false_certificates,
    noted,
    refusals,
    refused,
    refused_wholly,
    tested,
)
from experiments.report.naming import attack_label, bare, bare_name, unit_of_main
from experiments.report.numbers import label_accuracy, null_of, reached
from experiments.report.reasons import clients_hit, unit_after
from experiments.wording.defense_names import defense_name
from experiments.wording.names import show, title
from experiments.wording.prose import capital, counted


@dataclass(frozen=True, slots=True)
class Statement:
    """What the attacks show under one defense.

    Attributes:
        name: of the defense.
        said: the verdict as the page prints it.
        grade: how bad the leak is, in the word that the page shows; empty without a leak.
        lead: the verdict as a sentence.
        detail: the numbers that it rests on, in sentences.
    """

    name: str
    word: Word
    said: str
    grade: str
    lead: str
    detail: str


def undefended(section: TaskFindings, verdict: Verdict) -> Statement:
    """What the attacks show where nothing is in their way."""
    them, where = things(section), bare(section)
    lead = {
        "leaks": f"{capital(where)} {_leaking(section, verdict)}.",
        "labels leak": f"{capital(where)} the labels leak. {_rows(section, verdict)}",
        "members leak": f"{capital(where)} it shows who took part. {_rows(section, verdict)}",
        "holds by bound": f"{capital(where)} {_bounded(section, verdict)}.",
        "no leak found": f"{capital(where)} these attacks find {no_leak(section, verdict)}.",
        "not decided": f"Not decided: whether the {them} leak {where}.",
        "not attacked": f"Whether the {them} leak {where} was not tested.",
    }[verdict.word]
    return _statement(section, verdict, bare_name(section), lead, _detail(section, verdict))


def defended(section: TaskFindings, verdict: Verdict, bare: Verdict | None) -> Statement:
    """What the attacks show under a defense, and what it costs."""
    name = defense_name(verdict.defense, verdict.defense_options)
    start = capital(name)
    leaking = bare is None or bare.rows == "leaks"
    lead = {
        "leaks": f"{start} does not stop the leak: {_leaking(section, verdict)}.",
        "labels leak": f"{start} does not hide the labels. {_rows(section, verdict)}",
        "members leak": f"{start} does not hide who took part. {_rows(section, verdict)}",
        "holds by bound": f"{start} holds by bound: {_bounded(section, verdict)}.",
        "no leak found": f"{start}: {no_leak(section, verdict)}, as far as these attacks tell."
        if leaking
        else f"{start}: {no_leak(section, verdict)}, but none was shown without a defense either.",
        "not decided": f"Not decided: whether {name} holds.",
        "not attacked": f"{start} was not tested.",
    }[verdict.word]
    open_ = verdict.rows in ("holds by bound", "no leak found", "not decided")
    parts = (
        tested(section, verdict, bare),
        _detail(section, verdict),
        cost(section, verdict) if open_ else "",
    )
    return _statement(section, verdict, name, lead, " ".join(filter(None, parts)))


def _statement(
    section: TaskFindings, verdict: Verdict, name: str, lead: str, detail: str
) -> Statement:
    said = word_of(section, verdict)
    return Statement(name, verdict.word, said, verdict.grade or "", lead, detail)


def no_leak(section: TaskFindings, verdict: Verdict) -> str:
    """``no leak above 1 dB``."""
    return f"no leak above {show_smallest(section, verdict)}"


def word_of(section: TaskFindings, verdict: Verdict) -> str:
    """The verdict as the tables print it."""
    none = verdict.word == "no leak found"
    return f"{no_leak(section, verdict)} found" if none else verdict.word


def shade(word: Word, grade: str | None) -> str:
    """The class of the page that colours a verdict: by its severity, else by its word."""
    return (grade or word).replace(" ", "-")


def show_smallest(section: TaskFindings, verdict: Verdict) -> str:
    """The smallest effect that counts, with its unit."""
    unit = unit_of_main(section)
    return f"{verdict.smallest:g} {title(section.main) if unit == '1' else unit}"


def _leaking(section: TaskFindings, verdict: Verdict) -> str:
    """How much leaks, in a clause."""
    them = things(section)
    if verdict.grade == "verbatim":
        return f"{them} come back exactly, {clients_hit(verdict.verbatim, 'verbatim')}"
    if verdict.grade == "recognisable":
        return f"{them} are recovered, {clients_hit(verdict.recovered, 'recognisable')}"
    if verdict.grade == "words":
        return "words leak, though no whole text is shown to"
    return f"guesses come closer to the {them} than blind ones, and recover none"


def _rows(section: TaskFindings, verdict: Verdict) -> str:
    """What is to be said of the rows where something else leaks."""
    them = things(section)
    if verdict.rows == "holds by bound":
        return f"Of the {them} {_bounded(section, verdict)}."
    if verdict.rows == "no leak found":
        return f"Of the {them} these attacks find {no_leak(section, verdict)}."
    tried = verdict.rows == "not decided"
    return f"Whether the {them} do is not decided." if tried else f"The {them} were not attacked."


def _bounded(section: TaskFindings, verdict: Verdict) -> str:
    """What a bound says of any attack."""
    return (
        "no attack can, on average, come closer than the best blind guess by more than "
        f"{show_smallest(section, verdict)}"
    )


def things(section: TaskFindings) -> str:
    """What the private examples are."""
    return "images" if section.modality == "image" else "texts"


def recovered(section: TaskFindings, verdict: Verdict) -> tuple[int, int] | None:
    """How many victims the strongest attack recovers, of how many; None without a threshold."""
    strongest = verdict.strongest
    result = section.result(verdict.place, strongest.attacker) if strongest else None
    leakage = result.leakage.get(section.main) if result else None
    if leakage is None or leakage.share is None:
        return None
    return round(leakage.share.value * leakage.n), verdict.victims


def _detail(section: TaskFindings, verdict: Verdict) -> str:
    parts = (
        false_certificates(section, verdict),
        _why_untested(section, verdict)
        if verdict.rows == "not attacked"
        else f"{_leakage(section, verdict)} {doubt(section, verdict)}",
        _labels(section, verdict),
        _members(verdict),
        refused(section, verdict),
        noted(section, verdict),
        "" if verdict.rows == "not attacked" else refused_wholly(section, verdict),
    )
    return " ".join(" ".join(filter(None, parts)).split())


def _leakage(section: TaskFindings, verdict: Verdict) -> str:
    """What the strongest attack reaches, and what guessing blindly does."""
    if verdict.grade == "words":
        return _words(section, verdict)
    name, highest = reached(section, verdict.strongest)
    if highest is None:
        return ""
    metric, unit = title(section.main), unit_after(section)
    null = null_of(section, verdict, verdict.null) if verdict.null else None
    count = recovered(section, verdict)
    whole = f"recovers {count[0]} of {count[1]} {things(section)} and " if count else ""
    against = f", against {show(null.value, null.unit)}{unit} for a blind guess" if null else ""
    mean = show(highest.value, highest.unit)
    return f"{capital(name)} {whole}reaches a mean {metric} of {mean}{unit}{against}."


def _words(section: TaskFindings, verdict: Verdict) -> str:
    """How many words of a batch an attack names, which can leak without their order."""
    results = [section.result(verdict.place, attacker) for attacker in verdict.beating]
    known = [
        result for result in results if result is not None and set(WORDS) <= result.leakage.keys()
    ]
    if not known:
        return ""
    best = max(known, key=lambda result: min(result.leakage[name].mean for name in WORDS))
    precision, recall = (f"{100 * best.leakage[name].mean:.0f} %" for name in WORDS)
    name = attack_label(section, best.attacker)
    return (
        f"{capital(name)} names {recall} of the words of a batch, and {precision} of "
        "those that it names are right."
    )


def _why_untested(section: TaskFindings, verdict: Verdict) -> str:
    skipped = verdict.jobs["skipped"]
    if not skipped:
        return "No attack was run."
    known = [(name, why) for name, why in refusals(section, verdict.place).items() if why]
    reason = "".join(f": {name}: {why}" for name, why in known[:1])
    jobs = counted(skipped, "job")
    return f"No attack could run ({jobs} skipped){reason}. Another attack may succeed."


def _labels(section: TaskFindings, verdict: Verdict) -> str:
    accuracy = label_accuracy(section, verdict)
    if accuracy is None:
        return ""
    name = attack_label(section, verdict.labels)
    return f"The labels leak: {name} infers {100 * accuracy.value:.0f} % of them."


def _members(verdict: Verdict) -> str:
    best = verdict.members
    if best is None:
        return ""
    return f"Members leak: {METRICS[best.metric]} {best.number} by {best.attack}."
