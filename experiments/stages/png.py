"""Images as PNG files."""

import io

import torch
from torch import Tensor


def png(image: Tensor) -> bytes:
    """A PNG file, pixel for pixel.

    Args:
        image: ``(channel, height, width)``; uint8, or float in [0, 1]. Of one or three channels, or
            grey with the channels side by side, such as the columns of a table.
    """
    from PIL import Image

    pixels = image.detach().cpu()
    if pixels.is_floating_point():
        pixels = (pixels.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
    colour = pixels.shape[0] == 3
    array = pixels.permute(1, 2, 0) if colour else pixels.transpose(0, 1).flatten(1)
    picture = Image.fromarray(array.numpy())
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
