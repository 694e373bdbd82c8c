"""Programs that several ranks train together, each rank on its own part of the data."""

from sparsefleet.fluid.collective.ranks import Ranks, present_ranks, set_ranks

__all__ = ["Ranks", "present_ranks", "set_ranks"]
