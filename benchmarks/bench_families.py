"""What each attack does to one small random model of every supported architecture.

Random weights make an attack look stronger than trained ones do: the table says which attacks work
with an architecture at all, not how much they find.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from attacks.base import Attack, Job, Reconstruction, check_facts
from attacks.learned.lti import LTI
from attacks.observed.factored import Factored, Products
from attacks.observed.replay import replay
from attacks.span.span import Span
from attacks.texts.lamp import LAMP
from attacks.texts.tag import TAG, DLGText
from benchmarks.family_cases import SHAPES, FamilyCase
from fedsim.data.rows import load_rows
from fedsim.errors import CannotAttack
from fedsim.models.embeddings import embedding_names
from fedsim.seeds import generator
from fedsim.store.capture import Observation
from fedsim.types import Batch

_FIRST = 3  # row from which sentences are taken
_BUDGET = 120.0  # seconds of one attack
_FEW: dict[str, Any] = {"steps": 2}
_LTI = LTI(bins=0.01, width=16, channels=16, epochs=1, updates=32)


@dataclass(frozen=True)
class FamilyRow:
    """One attack on one architecture.

    Attributes:
        attack: what was tried.
        sentences: of the batch.
        exact: sentences found whole; None where only the work is checked.
        certified: sentences that the attack calls certified.
        error: largest relative error of a factored tensor; None for an attack.
        share: of the gradient's squared norm, without the word table, that is factored.
        seconds: CPU time.
        unfinished: the clock ended it, so that a faster machine may find more.
        reason: why the attack refuses; empty if it does not.
    """

    family: str
    attack: str
    sentences: int
    exact: int | None = None
    certified: int = 0
    error: float | None = None
    share: float | None = None
    seconds: float = 0.0
    unfinished: bool = False
    reason: str = ""

    def text(self) -> str:
        """For a terminal."""
        if self.reason:
            outcome = f"refuses: {self.reason}"
        elif self.error is not None:
            outcome = f"relative error {self.error:.0e}, share {self.share:.4f}"
        elif self.exact is None:
            outcome = "runs"
        else:
            outcome = f"{self.exact} of {self.sentences} exact, {self.certified} certified"
            outcome += ", unfinished" * self.unfinished
        return f"{self.family:<13} {self.attack:<22} {self.seconds:>6.1f} s  {outcome}"


def family_table(families: tuple[str, ...] = tuple(SHAPES)) -> Iterator[FamilyRow]:
    """The rows of each family, as they come."""
    for family in families:
        case = FamilyCase.of(family)
        yield oracle(case)
        for count in (1, 4):
            yield attacked(case, Span(), count, f"span, B = {count}")
        yield attacked(case, Span(), 4, "span, B = 4, frozen", frozen=True)
        yield attacked(FamilyCase.of(family, 64), Span(), 1, "span, LoRA r = 64")
        for attack in (LAMP(prior="", **_FEW), TAG(**_FEW), DLGText(**_FEW)):
            yield attacked(case, attack, 1, type(attack).__name__, exact=False)
        yield attacked(case, _LTI, 1, "LTI", exact=False)


def attacked(
    case: FamilyCase,
    attack: Attack,
    count: int,
    name: str,
    *,
    frozen: bool = False,
    exact: bool = True,
) -> FamilyRow:
    """One attack on a batch of ``count`` sentences.

    With ``exact = False`` it is only seen to come to an end: its schedule is cut to a few steps.
    """
    row = FamilyRow(case.family, name, count)
    begun = time.process_time()
    try:
        seen, batch = case.capture(range(_FIRST, _FIRST + count), frozen=frozen)
        reconstruction, late = _guess(attack, case, seen)
    except CannotAttack as refusal:
        return replace(row, reason=refusal.reason, seconds=time.process_time() - begun)
    row = replace(row, seconds=time.process_time() - begun, unfinished=late)
    if not exact:
        return row
    guess, truth = (
        Counter(case.task.examples(rows).tokens) for rows in (reconstruction.guess, batch)
    )
    certified = (reconstruction.confidence or ()).count("certified")
    return replace(row, exact=(guess & truth).total(), certified=certified)


def _guess(attack: Attack, case: FamilyCase, seen: Observation) -> tuple[Reconstruction, bool]:
    """What the attack makes of a capture, and whether the clock ended it."""

    def public() -> Batch:
        return case.task.encode(load_rows("sentences", "public[:64]", modality="text"))

    check_facts(attack, seen.knowledge, case.task)
    job = Job(deadline=time.monotonic() + _BUDGET, auxiliary=public)
    job.prepared = attack.prepare(seen, case.task, job, 0)
    (reconstruction,) = attack.reconstruct([seen], case.task, [generator(0, "families")], job)
    return reconstruction, job.expired


def oracle(case: FamilyCase) -> FamilyRow:
    """The factored gradient of four sentences compared with autograd's."""
    begun = time.process_time()
    seen, batch = case.capture(range(_FIRST, _FIRST + 4))
    model = replay(seen, case.task, torch.device("cpu"))
    words: Callable[..., torch.Tensor] = model.network.get_input_embeddings()  # type: ignore[operator]
    guess = words(batch.inputs).detach()[None]
    factored = Factored(model)
    errors, shown = [0.0], 0.0
    for group in factored(guess, batch, create_graph=False):
        if isinstance(group, Products):
            values = (group.left.mT @ group.right)[:, 0]
        else:
            values = group.values[:, 0]
        for name, value in zip(group.names, values, strict=True):
            if name in factored.names:
                own = seen.received[name].flatten()
                rest = own.new_zeros(own.numel() - value.numel())  # rows that no token reaches
                off = torch.cat([value.flatten(), rest]) - own
                errors.append(float(off.norm() / own.norm()))
                shown += float(own.square().sum())
    word = embedding_names(model.network).word
    every = sum(float(own.square().sum()) for name, own in seen.received.items() if name != word)
    seconds = time.process_time() - begun
    row = FamilyRow(case.family, "factored gradient", 4, seconds=seconds)
    return replace(row, error=max(errors), share=shown / every)
