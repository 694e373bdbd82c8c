"""Image scaling as a module, so that images can be sent to the device as bytes.

In shapes, B is the number of images, C the number of channels, H the height, and W the width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsefleet.errors import ConfigError

__all__ = ["ImageScaling"]


class ImageScaling(nn.Module):
    """Convert uint8[B, C, H, W] to float32[B, C, H, W]: (x / 255 - mean) / std per channel.

    If this is the first module of a model, images can be read, queued and copied to the device as
    bytes, which are a quarter of the size of floats.

    >>> scale = ImageScaling(mean=[0.5], std=[0.25])
    >>> scale(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    tensor([[[[-2.,  2.]]]])
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean or any(number <= 0 for number in std):
            raise ConfigError(
                f"ImageScaling: mean and std need one number per channel, and every std must be "
                f"> 0; got {list(mean)} and {list(std)}"
            )
        means, deviations = (torch.tensor(x).reshape(-1, 1, 1) for x in (mean, std))
        self.register_buffer("factor", 1.0 / (255.0 * deviations), persistent=False)
        self.register_buffer("shift", means / deviations, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scaled images."""
        if images.dtype is not torch.uint8:
            raise ConfigError(f"ImageScaling: expected uint8 images, got {images.dtype}")
        return images * self.factor - self.shift
