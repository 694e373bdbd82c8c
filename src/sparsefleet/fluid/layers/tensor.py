"""Tensors made and shaped, by the name of Fluid's module."""

from sparsefleet.fluid.layers.by_module import names_of

__getattr__ = names_of(__name__)
