"""Definitions of the terms that occur on the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from experiments.analysis.statistics import FEW
from experiments.report.footer import definition, summary
from experiments.stages.coverage import THRESHOLDS
from experiments.wording.names import title
from fedsim.metrics.base import Metric

TERMS: tuple[tuple[str, str, str], ...] = (
    (
        "Verdicts",
        "leaks|no leak above|not decided",
        "Leaks: examples came back exactly, or clearly more than blind guesses get, or the mean "
        "lies above every blind guess on the same victims by more than the smallest effect (1 dB, "
        ".05 of ROUGE-L, unless the experiment says otherwise). No leak above it found: every mean "
        "lies surely below, with an attack that works without a defense and, under one, is adapted "
        "to it. Not decided: neither. Intervals are corrected for the number of attacks.",
    ),
    (
        "Severity",
        "verbatim|recognisable|better than guessing|class only",
        "Verbatim: every pixel within half a byte, or every token. Recognisable: at the threshold "
        f"or above, {THRESHOLDS['psnr']:g} dB or a ROUGE-L of {THRESHOLDS['rougeL']:g}. Words: "
        "those of a batch, not their order. Better than guessing: in the mean. Class only: labels.",
    ),
    (
        "Blind guess",
        "blind guess|prior only|other client",
        "The null baseline. Prior only guesses without looking at any update. Other client's "
        "update: the same attack is fed the update of another client. Only what exceeds both is "
        "leakage.",
    ),
    (
        "Intervals",
        "interval",
        f"95 % intervals of a mean over whole clients: from {FEW} clients on a t interval, widened "
        "where clients are skewed; where most score alike the exact binomial one, which is wider; "
        "otherwise none. Leads and changes are taken on the same victims.",
    ),
    (
        "\N{DAGGER}",
        "\N{DAGGER}",
        "All examples belong to one client, so the interval says nothing about other clients.",
    ),
    (
        "Recovered",
        "recovers",
        f"A PSNR of at least {THRESHOLDS['psnr']:g} dB, or a ROUGE-L of at least "
        f"{THRESHOLDS['rougeL']:g}.",
    ),
    (
        "Victims",
        "victims",
        "An example counts once for every round in which it was attacked. A victim that an attack "
        "refused counts as a blind guess.",
    ),
    (
        "Cohorts",
        "cohort",
        "Under secure aggregation the server sees sums over cohorts, and intervals treat a cohort "
        "as a client. Cohorts are drawn anew in each round, so their independence is approximate.",
    ),
    (
        "Utility",
        "accuracy|mcc|perplexity|loss",
        "Measured on held-out rows; the mean over the last tenth of the rounds. Its interval is a "
        "t interval over seeds, and one seed gives none: utility_seeds adds trainings "
        "without attacks.",
    ),
    (
        "Epsilon",
        "ε",
        "The privacy budget spent by the client that spent most, over all its rounds, at the "
        "defense's delta: about one example for DP-SGD, about a client's whole reply for "
        "client-level DP.",
    ),
    (
        "FedSGD",
        "FedSGD",
        "Each client sends the gradient of one batch; in FedAvg it sends its weights after one or "
        "more steps of its own (McMahan et al. 2017).",
    ),
    (
        "Perplexity",
        "perplexity",
        "exp of the mean cross-entropy of a held-out token: 1 is certain, the size of the "
        "vocabulary is a guess. Less is better.",
    ),
    (
        "Adaptive",
        "adaptive",
        "An adaptive attack uses what it knows of the defense; an oblivious one ignores it.",
    ),
    (
        "Best of portfolio",
        "best of portfolio",
        "Each client is attacked by the attack that does best on the other clients. Choosing on "
        "the victims themselves would flatter the attacker.",
    ),
    (
        "Worst 10 %",
        "worst 10 %",
        "The mean over the tenth of the examples that leaked most, at least one example.",
    ),
    (
        "Realism",
        "realism|L[1-4]",
        "From L1, the setting easiest for the attacker, over L2 (labels and lengths withheld, "
        "batches, train mode) and L3 (several local steps on unevenly dealt rows) to L4 (secure "
        "aggregation of some clients of each round).",
    ),
)
"""Term, a pattern that is on a page that needs it, and what it means."""


def glossary(page: str, *, full: bool) -> list[tuple[str, str]]:
    """Terms and what they mean: those on the page, or all.

    Args:
        page: its text.
        full: explain every term.
    """
    return [
        (term, meaning)
        for term, pattern, meaning in TERMS
        if full or re.search(rf"(?<!\w)(?:{pattern})", page, re.IGNORECASE)
    ]


def metric_terms(
    classes: Mapping[str, type[Metric]], measured: Iterable[str], *, full: bool
) -> list[tuple[str, str]]:
    """These metrics with all that there is to say of them in full, else their summaries."""
    known = set(measured)
    terms = []
    for name, kind in classes.items():
        if name in known:
            unit = "a ratio" if kind.unit == "1" else kind.unit
            more = f" {kind.attacker_wants.capitalize()} leaks more; unit: {unit}."
            terms.append((title(name), definition(kind) + more if full else summary(kind)))
    return terms
