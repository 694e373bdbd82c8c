"""Convert blocks to JSON and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparsefleet.fluid.framework.call_site import CallSite, ProgramError
from sparsefleet.fluid.framework.operator import Operator
from sparsefleet.fluid.framework.param_attr import regularizer_from_json
from sparsefleet.fluid.framework.parameter import Parameter
from sparsefleet.fluid.framework.variable import TENSOR, Variable

if TYPE_CHECKING:
    from sparsefleet.fluid.framework.block import Block

__all__ = ["block_from_json", "block_to_json"]

Json = dict[str, Any]

_VARIABLE_FIELDS = ("lod_level", "stop_gradient", "persistable", "is_data", "need_check_feed")


def block_to_json(block: Block) -> Json:
    return {
        "parent": block.parent_idx,
        "vars": [_variable_to_json(variable) for variable in block.vars.values()],
        "ops": [_operator_to_json(op) for op in block.ops],
    }


def block_from_json(block: Block, document: Json) -> None:
    """Add the contents of the document to an empty block."""
    try:
        for item in document["vars"]:
            block.add_var(_variable_from_json(item))
        block.hold_ops(_operator_from_json(item) for item in document["ops"])
    except (KeyError, TypeError) as error:
        raise ProgramError(f"not a program: {error!r}") from error
    block.program.changed()


def _variable_to_json(variable: Variable) -> Json:
    document: Json = {
        "name": variable.name,
        "shape": list(variable.shape),
        "dtype": variable.dtype,
        **{field: getattr(variable, field) for field in _VARIABLE_FIELDS},
    }
    if variable.type != TENSOR:
        document["type"] = variable.type
    if isinstance(variable, Parameter):
        document["parameter"] = {
            "trainable": variable.trainable,
            "learning_rate": variable.optimize_attr["learning_rate"],
            "regularizer": variable.regularizer and variable.regularizer.to_json(),
            "is_table": variable.is_table,
            "table_optimizer": variable.table_optimizer,
        }
    return document


def _variable_from_json(document: Json) -> Variable:
    name, shape, dtype = document["name"], document["shape"], document["dtype"]
    extra = document.get("parameter")
    if extra is None:
        settings = {key: document[key] for key in _VARIABLE_FIELDS}
        return Variable(name, shape, dtype, type=document.get("type", TENSOR), **settings)
    made = Parameter(
        name,
        shape,
        dtype,
        trainable=extra["trainable"],
        learning_rate=extra["learning_rate"],
        regularizer=extra["regularizer"] and regularizer_from_json(extra["regularizer"]),
        is_table=extra["is_table"],
    )
    made.stop_gradient = document["stop_gradient"]
    made.table_optimizer = extra["table_optimizer"]
    return made


def _operator_to_json(op: Operator) -> Json:
    return {
        "type": op.type,
        "inputs": op.inputs,
        "outputs": op.outputs,
        "attrs": op.attrs,
        "role": op.role,
        "site": op.site and list(op.site),
    }


def _operator_from_json(document: Json) -> Operator:
    site = document["site"]
    return Operator(
        document["type"],
        document["inputs"],
        document["outputs"],
        document["attrs"],
        role=document["role"],
        site=site and CallSite(*site),
    )
