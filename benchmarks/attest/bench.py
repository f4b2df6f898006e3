"""What ``fedsim attest`` and the guard say of clients whose defense is known.

    python -m benchmarks.attest.bench --record

writes ``docs/results/attest.json``.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.attest.clients import reply, victim
from benchmarks.attest.leakage_value import TABLES, compared
from benchmarks.attest.liars import LIARS, LOCAL, OPACUS, SOUND, sgd
from benchmarks.certificate_draws import MODELS, certified, first_parts, observed
from docs.measured import RESULTS, made_here
from experiments.attest.claims import Declared, noise_of
from experiments.attest.findings import Part
from experiments.attest.guard import Guard
from experiments.attest.reply import attest
from experiments.attest.rounds import attest_all
from fedsim.defenses import build_chain
from fedsim.process import one_thread
from fedsim.tasks.base import Task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors
from fedsim.visible import say

NETWORKS = ("lenet", "resnet20", "tiny-bert", "tiny-gpt2")
HUB = ("sentence-transformers/all-MiniLM-L6-v2", "fedsim/gpt2-8k")
DEFENSES: Mapping[str, tuple[dict[str, Any], set[Part]]] = {
    "gaussian_noise": ({"std": 0.01}, {"noise"}),
    "local_dp": (LOCAL, {"noise"}),
    "dp_client": ({"clip": 1.0, "noise_multiplier": 0.1}, {"noise"}),
    "dp_sgd": ({"clip": 1.0, "noise_multiplier": 1.0}, {"noise"}),
    "prune": ({"fraction": 0.9}, {"sparsity"}),
    "percentile_privacy": ({}, {"sparsity", "cut"}),
    "svt_privacy": ({}, {"sparsity"}),
    "quantize": ({"kind": "int8"}, {"grid"}),
    "sign": ({}, {"signs"}),
    "withhold": ({"tensors": ["*bias"]}, {"withheld"}),
}
DIGITS = {"in round": 1, "seconds of the filter": 1, "seconds of the guard": 4}
_ROUNDS, _LIARS, _ONE_IMAGE, _REPEATS = 10, 3, 4, 15
PROTOCOLS = {
    "gradient": ("sgd", 0),
    "5 steps of SGD": ("sgd", 5),
    "1 step of Adam": ("adam", 1),
    "5 steps of Adam": ("adam", 5),
}
"""What a client sends -> its optimizer, and its steps."""


def undefended(clients: int) -> Iterator[dict[str, Any]]:
    """False alarms, of a reply or of the norms of all."""
    for protocol, (optimizer, steps) in PROTOCOLS.items():
        for network in NETWORKS:
            sent = (reply(network, k, optimizer=optimizer, steps=steps) for k in range(clients))
            seen = attest_all(sent)
            alarms = sum(bool(each.defenses) for each in seen.replies)
            alarms = clients if seen.clip.state == "present" else alarms
            yield _row(f"no defense, {protocol}", network, "a defense is seen", alarms, clients)


def named(clients: int) -> Iterator[dict[str, Any]]:
    """Defenses that are told by what they do, the size of their noise, and the next one's claim."""
    others = dict(pairwise([*DEFENSES, *DEFENSES]))
    for name, (options, parts) in DEFENSES.items():
        claims = [
            Declared(each, build_chain(({"name": each, **DEFENSES[each][0]},), "defense"))
            for each in (name, others[name])
        ]
        for protocol in ("gradient", "5 steps of SGD"):
            steps, case = PROTOCOLS[protocol][1], f"{name}, {protocol}"
            for network in ("lenet", "tiny-bert"):
                table = {"name": name, **options}
                sent = [reply(network, k, table, steps=steps) for k in range(clients)]
                seen = [attest(each) for each in sent]
                words = [claims[1].held(*each).word for each in zip(sent, seen, strict=True)]
                measure = f"fits {others[name]}"
                yield _row(case, network, measure, words.count("consistent"), clients)
                right = sum(bool(each.defenses) and parts >= set(each.defenses) for each in seen)
                yield _row(case, network, "named right", right, clients)
                untold = sum(not each.defenses for each in seen)
                yield _row(case, network, "not told", untold, clients)
                if sigma := noise_of(claims[0].chain.defenses[0], sent[0])[0]:
                    values = [each["noise"].value or 0.0 for each in seen]
                    near = sum(abs(value / sigma - 1) <= 0.05 for value in values)
                    yield _row(case, network, "sigma within 5 %", near, clients)


def sizes(clients: int) -> Iterator[dict[str, Any]]:
    """Clipping norms of three rounds, and formats of the wire."""
    for network in ("lenet", "tiny-bert"):
        near = 0
        for client in range(clients):
            norm = 0.02 + 0.002 * client
            table = {"name": "clip", "norm": norm}
            rounds = [reply(network, client + 1000 * r, table, round_=r) for r in (1, 2, 3)]
            near += abs((attest_all(rounds).clip.value or 0.0) / norm - 1) <= 0.02
        yield _row("clip", network, "norm within 2 %", near, clients)
        for kind, known in (("fp16", "numbers of float16"), ("bf16", "numbers of bfloat16")):
            table = {"name": "quantize", "kind": kind}
            texts = [attest(reply(network, k, table))["format"].text for k in range(clients)]
            right = sum(text.startswith(known) for text in texts)
            yield _row(f"quantize to {kind}", network, "format exact", right, clients)


def honest(clients: int) -> Iterator[dict[str, Any]]:
    """Claims that hold, and such a client asked about twice the noise."""
    draws: Sequence[tuple[str, str, dict[str, Any], int, int]] = (
        (SOUND, "lenet", LOCAL, 0, 3 * clients),
        (SOUND, "tiny-bert", LOCAL, 0, clients),
        (OPACUS, "lenet", sgd(1.0), 0, 2 * clients),
        (OPACUS, "lenet", sgd(1.0), 5, 2 * clients),
    )
    for text, network, table, steps, count in draws:
        claim = Declared.parse(text)
        words = []
        for client in range(count):
            told = reply(network, client, table, steps=steps)
            words.append(claim.held(told, attest(told)).word)
        case = f"honest: {text}" + (f", {steps} steps" if steps else "")
        yield _row(case, network, "refuted", words.count("refuted"), count)
        yield _row(case, network, "consistent", words.count("consistent"), count)
    twice = Declared.parse("local_dp clip=1 epsilon=5 delta=1e-5")
    replies = [reply("lenet", client, LOCAL) for client in range(clients)]
    words = [twice.held(each, attest(each)).word for each in replies]
    case = "asked about a claim of twice the noise"
    yield _row(case, "lenet", "refuted", words.count("refuted"), clients)


def lying() -> Iterator[dict[str, Any]]:
    """Rounds until a liar is refuted."""
    for name, (text, client) in LIARS.items():
        claim, until = Declared.parse(text), []
        for number in range(_LIARS):
            sent = []
            for round_ in range(1, _ROUNDS + 1):
                sent.append(client(number, round_))
                if attest_all(sent[-2:], claim).refuted:
                    until.append(round_)
                    break
        network = sent[0].task.spec.model
        yield _row(f"liar: {name}", network, "refuted", len(until), _LIARS)
        if until:
            rounds = {"setting": _setting(f"liar: {name}", network), "measure": "in round"}
            yield rounds | {"n": len(until), "mean": sum(until) / len(until), "unit": "1"}


def guarded(draws: int) -> Iterator[dict[str, Any]]:
    """Of updates whose rows a server could certify, those that the guard does not pass."""
    stopped, proven = dict.fromkeys(MODELS, 0), dict.fromkeys(MODELS, 0)
    for seed in range(draws):
        model = [*MODELS][seed % len(MODELS)]
        task, rows, sent = victim(model)
        guard = Guard()
        with guard.watching():
            seen, _, truth = observed(task, rows, sent, seed, random.Random(seed))
        note = guard.check(seen.sent, seen.received)
        parts = first_parts(task, seen) if isinstance(task, TextTask) else MODELS[model]
        if certified(seen, task, truth, parts):
            proven[model] += 1
            stopped[model] += not note.passes
    for model, count in proven.items():
        yield _row("guard: certified updates", model, "stopped", stopped[model], count)
    for network in NETWORKS:
        notes = [_private(network, client) for client in range(max(1, draws // 20))]
        case = "guard: DP-SGD, noise 2.24 (epsilon 10 in 20 steps, no sampling)"
        yield _row(case, network, "pass", sum(notes), len(notes))


def shares() -> Iterator[dict[str, Any]]:
    """The guard's CPU time of a reply that carries noise, so that all of its tests are asked."""
    for network in (*NETWORKS, *HUB):
        for count, steps in ((8, 1), (32, 1), (8, 5)):
            task, rows, sent = victim(network)
            batch = task.encode(rows.take(list(range(count))))
            pairs = [_seconds(task, sent, batch, steps) for _ in range(_REPEATS)]
            bare, watched, asked = (median(each) for each in zip(*pairs, strict=True))
            case = f"guard: CPU of a reply of {steps} step{'s' * (steps > 1)} of {count} examples"
            setting = _setting(case, network)
            for measure, part in (("share", watched - bare + asked), ("of it the look", asked)):
                mean = round(100 * part / bare, 1)
                known = {"n": _REPEATS, "mean": mean, "unit": "percent"}
                yield {"setting": setting, "measure": measure, **known}


def beside_filter(clients: int) -> Iterator[dict[str, Any]]:
    """The guard beside NVFlare's filter, on replies with one image."""
    seen = list(compared("lenet", clients))
    for case in TABLES:
        stops = [each[1:] for each in seen if each[0] == case]
        title = f"one image, {case}"
        yield _row(title, "lenet", "NVFlare's filter stops", sum(x[0] for x in stops), clients)
        yield _row(title, "lenet", "stopped", sum(x[1] for x in stops), clients)
        for measure, at in (("seconds of the filter", 2), ("seconds of the guard", 3)):
            mean = round(sum(x[at] for x in stops) / clients, 4)
            setting = _setting(title, "lenet")
            yield {"setting": setting, "measure": measure, "n": clients, "mean": mean, "unit": "s"}


def _private(network: str, client: int) -> bool:
    """Whether a step of DP-SGD on eight examples passes."""
    guard = Guard()
    with guard.watching():
        seen = reply(network, client, sgd(2.24), count=8).observation
    return guard.check(seen.sent, seen.received).passes


def _seconds(task: Task, sent: Tensors, batch: Batch, steps: int) -> tuple[float, float, float]:
    """CPU seconds of training without a guard, of training under it, and of its look."""
    network, begun = task.model(sent), time.process_time()
    _train(task, network, batch, steps)
    bare = time.process_time() - begun
    network, guard = task.model(sent), Guard()
    begun = time.process_time()
    with guard.watching():
        _train(task, network, batch, steps)
    watched = time.process_time() - begun
    reply = {name: value + 0.01 * torch.randn_like(value) for name, value in _floats(network)}
    _train(task, task.model(sent), batch, 1)  # what the look finds in the caches is the step's
    begun = time.process_time()
    guard.check(sent, reply)
    return bare, watched, time.process_time() - begun


def _train(task: Task, network: nn.Module, batch: Batch, steps: int) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(network, batch).backward()
        optimizer.step()


def _floats(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((k, v) for k, v in network.state_dict().items() if v.is_floating_point())


def _setting(case: str, network: str) -> dict[str, str]:
    return {"case": case, "network": network}


def _row(case: str, network: str, measure: str, count: int, n: int) -> dict[str, Any]:
    setting = _setting(case, network)
    if not n:
        return {"setting": setting, "measure": measure, "outcome": "none"}
    return {"setting": setting, "measure": measure, "n": n, "mean": count / n, "unit": "of n"}


def attests(share: float) -> Iterator[dict[str, Any]]:
    """Rows on what replies show; a share of the clients for a quick look."""
    yield from undefended(max(1, round(13 * share)))
    yield from named(max(1, round(10 * share)))
    yield from sizes(max(1, round(20 * share)))
    yield from honest(max(1, round(50 * share)))
    yield from lying()


def guards(share: float) -> Iterator[dict[str, Any]]:
    """Rows on the guard."""
    yield from guarded(max(20, round(500 * share)))
    yield from shares()
    yield from beside_filter(_ONE_IMAGE)


PARTS = {"attest": attests, "guard": guards}


def kept(part: str) -> tuple[list[dict[str, Any]], str]:
    """Recorded rows of the other part, and what is noted of them."""
    before = json.loads((RESULTS / "attest.json").read_text())
    guard = ("guard: ", "one image, ")
    rows = [
        row
        for row in before["rows"]
        if row["setting"]["case"].startswith(guard) != (part == "guard")
    ]
    return rows, f"Rows of the other part than `--only {part}` are of commit {before['commit']}."


def recorded(
    known: Sequence[dict[str, Any]], seconds: float, given: argparse.Namespace
) -> dict[str, Any]:
    """The result file."""
    others, noted = kept(given.only) if given.only else ([], "")
    return {
        "title": "What a reply shows of its defense, and what a guard stops",
        "paper": "",
        "command": f"python -m benchmarks.attest.bench --share {given.share:g}",
        **made_here(seconds),
        "columns": {"lines": ["case", "measure"], "across": "network", "digits": DIGITS},
        "rows": [*others, *known] if given.only == "guard" else [*known, *others],
        "notes": [
            "Batches of two images or sentences; of protocols with steps, two for each.",
            "Liars are asked round by round, with the one before; the claim is theirs.",
            "NVFlare's filter: 10 s of inverting, structural similarity beside a mean image, with "
            "its threshold of 1.",
            "Guard: updates of random batches, some clipped, rounded or with noise, of which the "
            "right guess is certified. Its CPU time is the median of fifteen steps.",
            *([noted] if noted else []),
        ],
        "generator": "python -m benchmarks.attest.bench --record",
    }


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--share", type=float, default=1.0, help="of the clients")
    options.add_argument("--only", choices=[*PARTS], help="keep the recorded rows of the other")
    options.add_argument("--record", action="store_true")
    return options


def main() -> None:
    """Draw, print, and record where that is asked."""
    given = parser().parse_args()
    with one_thread():
        begun, known = time.process_time(), []
        parts = [PARTS[given.only]] if given.only else [*PARTS.values()]
        for row in (row for part in parts for row in part(given.share)):
            known.append(row)
            place = ", ".join(row["setting"].values())
            said = f"{row.get('mean', 0):.3g} of n = {row.get('n', 0)}"
            say(f"{place}: {row['measure']} {said}", flush=True)
        seconds = time.process_time() - begun
    if given.record:
        text = json.dumps(recorded(known, seconds, given), indent=1) + "\n"
        (RESULTS / "attest.json").write_text(text)


if __name__ == "__main__":
    main()
