"""What is withheld is not sent."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from attacks.images.image_losses import matching_loss
from attacks.observed.replay import replay
from fedsim.defenses.base import Step
from fedsim.defenses.withhold import Withhold
from fedsim.errors import ConfigError
from fedsim.types import Tensors
from tests.defenses.cases import CPU, Pictures, Victim, rng


def test_what_is_withheld_is_not_sent_and_the_rest_is_as_it_was(
    victim: Victim, pictures: Pictures, step: Callable[[int], tuple[Step, Tensors]]
) -> None:
    one, gradient = step(1)
    head = Withhold(tensors=("fc.*",), others=True)
    head.on_model(one.model)
    sent = head.on_update(gradient, rng())
    assert [*sent] == ["fc.weight", "fc.bias"]
    assert all(sent[name] is gradient[name] for name in sent)
    assert [*Withhold(tensors=("fc.*",)).surrogate(gradient)] == [*gradient][:-2]
    for patterns, said in ((("body.*", "*"), "nothing would be sent"), (("f.*",), "fits no")):
        with pytest.raises(ConfigError, match=said):
            Withhold(tensors=patterns).on_model(one.model)
    batch = pictures(1, 0)
    table = {"name": "withhold", "tensors": ["fc.*"], "others": True}
    task, seen = victim(batch, defense=(table,))
    model = replay(replace(seen, received=sent), task, CPU)
    loss = matching_loss(model, seen, adaptive=True)(batch.inputs, batch.labels, sent)
    assert float(loss.detach()) < 1e-6
