"""Images as PNG files."""

from __future__ import annotations

import io

import torch
from torch import Tensor


def png(image: Tensor) -> bytes:
    """A PNG file, pixel for pixel.

    Args:
        image: ``(channel, height, width)`` with one or three channels; uint8, or float in [0, 1].
    """
    from PIL import Image

    pixels = image.detach().cpu()
    if pixels.is_floating_point():
        pixels = (pixels.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
    array = pixels.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
