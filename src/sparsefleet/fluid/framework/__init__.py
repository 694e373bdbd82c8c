"""Programs: what layers write and an Executor runs."""

from sparsefleet.fluid.call_site import CallSite, ProgramError, call_site
from sparsefleet.fluid.framework.block import Block
from sparsefleet.fluid.framework.default_programs import (
    default_main_program,
    default_startup_program,
    name_scope,
    program_guard,
    switch_main_program,
    switch_startup_program,
)
from sparsefleet.fluid.framework.modes import (
    device_guard,
    disable_dygraph,
    enable_dygraph,
    in_dygraph_mode,
)
from sparsefleet.fluid.framework.operator import Operator, Role
from sparsefleet.fluid.framework.parameter import Parameter
from sparsefleet.fluid.framework.program import Program
from sparsefleet.fluid.places import (
    cpu_places,
    cuda_pinned_places,
    cuda_places,
    is_compiled_with_cuda,
)
from sparsefleet.fluid.variable import Variable

__all__ = [
    "Block",
    "CallSite",
    "Operator",
    "Parameter",
    "Program",
    "ProgramError",
    "Role",
    "Variable",
    "call_site",
    "cpu_places",
    "cuda_pinned_places",
    "cuda_places",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "disable_dygraph",
    "enable_dygraph",
    "in_dygraph_mode",
    "is_compiled_with_cuda",
    "name_scope",
    "program_guard",
    "switch_main_program",
    "switch_startup_program",
]
