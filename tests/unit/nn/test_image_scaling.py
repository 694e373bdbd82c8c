"""Images that arrive as bytes."""

from __future__ import annotations

import pytest
import torch

from sparsefleet.errors import ConfigError
from sparsefleet.nn import ImageScaling


def test_bytes_become_normalised_floats_where_they_are() -> None:
    images = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    found = ImageScaling(mean, std)(images)
    wanted = (images.float() / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[
        :, None, None
    ]
    torch.testing.assert_close(found, wanted)
    assert ImageScaling(mean, std).state_dict() == {}
    assert ImageScaling().to("meta")(images.to("meta")).device.type == "meta"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected uint8 images, got torch.float32"):
        ImageScaling()(torch.zeros(1, 1, 2, 2))
    with pytest.raises(ConfigError, match="one number per channel"):
        ImageScaling([0.5], [0.5, 0.5])
