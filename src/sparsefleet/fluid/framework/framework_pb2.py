"""Saved programs as editable lists of blocks, variables and operators.

Fluid stores programs as protobuf, sparsefleet as JSON; the names are Fluid's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparsefleet.fluid.framework.call_site import ProgramError
from sparsefleet.fluid.framework.program_desc import program_of_desc
from sparsefleet.fluid.paths import unknown_names

__getattr__ = unknown_names("fluid.proto.framework_pb2")

__all__ = ["ProgramDesc"]

Json = dict[str, Any]


class ProgramDesc:
    """A program from `Program.serialize_to_string` or from a `__model__` file.

    >>> from sparsefleet import fluid
    >>> program = fluid.Program()
    >>> with fluid.program_guard(program, fluid.Program()):
    ...     _ = fluid.data("x", [None, 2]) * 2.0
    >>> found = ProgramDesc.FromString(program.serialize_to_string())
    >>> [op.type for op in found.blocks[0].ops]
    ['scale']
    """

    def __init__(self) -> None:
        self._around: Json | None = None  # the fields of a __model__ other than the program
        self._document: Json = {}
        self.blocks: list[BlockDesc] = []

    @classmethod
    def FromString(cls, data: bytes) -> ProgramDesc:  # noqa: N802  (protobuf's name)
        """Parse a program saved by sparsefleet or PaddlePaddle 1.x.

        Raise ProgramError for other bytes.
        """
        made = cls()
        if data.lstrip()[:1] != b"{":
            made._document = program_of_desc(data).document
            made.blocks = [BlockDesc(block) for block in made._document["blocks"]]
            return made
        try:
            document = json.loads(data)
            if "program" in document:
                made._around, document = document, document["program"]
            made._document = document
            made.blocks = [BlockDesc(block) for block in document["blocks"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ProgramError(
                f"not a program saved by sparsefleet or PaddlePaddle 1.x: {error}"
            ) from error
        return made

    def SerializeToString(self) -> bytes:  # noqa: N802
        """Return the program in its current state as bytes."""
        blocks = [block.to_json() for block in self.blocks]
        document: Json = {**self._document, "blocks": blocks}
        if self._around is not None:
            document = {**self._around, "program": document}
        return json.dumps(document).encode()

    SerializePartialToString = SerializeToString


class BlockDesc:
    """Lists of variables and operators."""

    def __init__(self, document: Json) -> None:
        self._document = document
        self.parent_idx: int = document.get("parent", -1)
        self.vars = [VarDesc(item) for item in document["vars"]]
        self.ops = [OpDesc(item) for item in document["ops"]]

    def to_json(self) -> Json:
        return {
            **self._document,
            "vars": [item.to_json() for item in self.vars],
            "ops": [item.to_json() for item in self.ops],
        }


class VarDesc:
    """A variable, identified by its name."""

    def __init__(self, document: Json) -> None:
        self._document = document
        self.name: str = document["name"]
        self.persistable: bool = document["persistable"]

    def to_json(self) -> Json:
        return {**self._document, "name": self.name, "persistable": self.persistable}


@dataclass(slots=True)
class Slot:
    """The variables in one slot of an operator."""

    parameter: str
    arguments: list[str]


@dataclass(slots=True)
class Attr:
    """An attribute of an operator."""

    name: str
    value: Any


class OpDesc:
    """An operator: its type, inputs, outputs and attributes."""

    def __init__(self, document: Json) -> None:
        self._document = document
        self.type: str = document["type"]
        self.inputs = _slots(document["inputs"])
        self.outputs = _slots(document["outputs"])
        self.attrs = [Attr(name, value) for name, value in document["attrs"].items()]

    def to_json(self) -> Json:
        return {
            **self._document,
            "type": self.type,
            "inputs": {slot.parameter: slot.arguments for slot in self.inputs},
            "outputs": {slot.parameter: slot.arguments for slot in self.outputs},
            "attrs": {attr.name: attr.value for attr in self.attrs},
        }


def _slots(document: Mapping[str, list[str]]) -> list[Slot]:
    return [Slot(name, list(arguments)) for name, arguments in document.items()]
