"""Data-parallel training on torch.distributed."""

from sparsefleet.collective.device_choice import choose_device
from sparsefleet.collective.world import World

__all__ = ["World", "choose_device"]
