"""Defenses of papers: each does what its formula says, and tells an attacker what it does."""

from collections.abc import Callable
from dataclasses import replace

from attacks.images.image_losses import matching_loss
from attacks.observed.replay import replay
from fedsim.defenses.base import Step
from fedsim.defenses.censor import Censor
from fedsim.defenses.pfgd import Pfgd
from fedsim.defenses.prune import DualPrune
from fedsim.defenses.soteria import Soteria
from fedsim.defenses.svdefense import SvDefense
from fedsim.defenses.tip import Tip
from fedsim.types import Tensors
from tests.defenses.cases import CPU, Pictures, Victim, rng


def test_the_truth_fits_what_an_adaptive_attacker_expects(
    victim: Victim, pictures: Pictures, step: Callable[[int], tuple[Step, Tensors]]
) -> None:
    batch = pictures(1, 0)
    one, gradient = step(1)
    censored = Censor(rate=0.5, trials=50).on_step(gradient, one, rng(3))
    assert censored is not gradient
    sent: list[tuple[dict[str, object], Tensors]] = [
        ({"name": "soteria"}, Soteria().on_step(gradient, one, rng())),
        ({"name": "pfgd", "fraction": 0.2}, Pfgd(fraction=0.2).on_update(gradient, rng())),
        ({"name": "dual_prune"}, DualPrune().on_update(gradient, rng())),
        ({"name": "censor"}, censored),
        ({"name": "tip"}, Tip().on_step(gradient, one, rng())),
        ({"name": "svdefense"}, SvDefense().on_update(gradient, rng())),
    ]
    for table, received in sent:
        task, seen = victim(batch, defense=(table,))
        model = replay(replace(seen, received=received), task, CPU)
        oblivious, aware = (
            float(matching_loss(model, seen, adaptive=own)(batch.inputs, batch.labels, received))
            for own in (False, True)
        )
        assert aware < 1e-4 < 0.01 < oblivious, table
