"""Fluid's imperative mode, on torch."""

# ruff: noqa: F403
from sparsefleet.fluid.dygraph import eager, layer, losses, nn, parallel, saving, schedules
from sparsefleet.fluid.dygraph.eager import *
from sparsefleet.fluid.dygraph.layer import *
from sparsefleet.fluid.dygraph.losses import *
from sparsefleet.fluid.dygraph.nn import *
from sparsefleet.fluid.dygraph.parallel import *
from sparsefleet.fluid.dygraph.saving import *
from sparsefleet.fluid.dygraph.schedules import *
from sparsefleet.fluid.paths import unknown_names

__getattr__ = unknown_names("fluid.dygraph")

_modules = (eager, layer, losses, nn, parallel, saving, schedules)

__all__ = sorted(["nn", "parallel", *(name for module in _modules for name in module.__all__)])
