"""Programs: what layers write and an Executor runs."""

from sparsefleet.fluid.call_site import CallSite, ProgramError, call_site
from sparsefleet.fluid.framework.block import Block
from sparsefleet.fluid.framework.default_programs import (
    default_main_program,
    default_startup_program,
    name_scope,
    program_guard,
)
from sparsefleet.fluid.framework.operator import Operator, Role
from sparsefleet.fluid.framework.parameter import Parameter
from sparsefleet.fluid.framework.program import Program
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
    "default_main_program",
    "default_startup_program",
    "name_scope",
    "program_guard",
]
