"""Transformations of images, and their undoing."""

import pytest
import torch
from torch import nn

from fedsim.defenses import build_chain
from fedsim.defenses.ats import Ats, brighten, sharpen, shift_x, shift_y
from fedsim.errors import ConfigError
from fedsim.types import Batch
from tests.defenses.cases import Pictures, rng


def test_what_shifts_and_brightens_an_image() -> None:
    image = torch.rand(3, 32, 32, generator=rng())
    moved = shift_x(image, 0.25)
    assert torch.equal(moved[..., :24], image[..., 8:])
    assert not moved[..., 24:].any()
    assert torch.equal(shift_y(image, -0.25)[:, 8:], image[:, :24])
    torch.testing.assert_close(brighten(image, -0.5), image / 2)
    flat = torch.full((3, 8, 8), 0.4)
    torch.testing.assert_close(sharpen(flat, 0.3), flat)
    assert torch.equal(sharpen(image, 0.5)[:, 0], image[:, 0])


def test_ats_is_undone_but_for_what_was_shifted_out(pictures: Pictures) -> None:
    batch = pictures(6, *range(6), size=32)
    bright = Batch(batch.inputs.clamp(min=0.05), batch.labels)
    ats = Ats()
    changed = ats.on_batch(bright, nn.Identity(), rng())
    back = ats.recover(changed, nn.Identity())
    error = (back.inputs - bright.inputs).square().flatten(1).mean(1)
    as_sent = (changed.inputs - bright.inputs).square().flatten(1).mean(1)
    assert int((error < as_sent).sum()) >= 5
    assert float(error.mean()) < 0.5 * float(as_sent.mean())
    with pytest.raises(ConfigError, match="token ids"):
        ats.on_batch(Batch(torch.tensor([[1]]), torch.tensor([0])), nn.Identity(), rng())


def test_an_unknown_transformation_is_named() -> None:
    with pytest.raises(ConfigError, match="transformation '99'; known are 3, 4, 7"):
        build_chain([{"name": "ats", "policies": ["3-99"]}], "defenses")
