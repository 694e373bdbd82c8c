"""Layers of a program."""

from sparsefleet.fluid.layers.io import data

__all__ = ["data"]
