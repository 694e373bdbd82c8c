"""Read programs that PaddlePaddle 1.x saved as `__model__` files or with `serialize_to_string`.

The files are protobuf messages of type ProgramDesc from Paddle's framework.proto. `program_of_desc`
converts such a message into the document that `Program.to_json` writes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefleet.checkpoint.paddle_files import TYPE_NAMES
from sparsefleet.fluid.framework.call_site import ProgramError

__all__ = ["SavedProgram", "program_of_desc"]

Json = dict[str, Any]

_MOST_DEPTH = 16

_TENSOR, _FEED, _FETCH, _ARRAY = 7, 9, 10, 13
_FOR_BACKWARD = ("XShape", "Mask", "Norm", "Argmax", "MaxIndex")
"""Outputs that exist only for Paddle's backward pass."""
_DTYPE_ATTRS = ("dtype", "in_dtype", "out_dtype", "index_dtype")


@dataclass(frozen=True, slots=True)
class SavedProgram:
    """A program as a JSON document, with the names of fed and fetched variables."""

    document: Json
    feeds: list[str]
    fetches: list[str]


def program_of_desc(data: bytes, location: str = "the program") -> SavedProgram:
    """Parse a ProgramDesc. Raises ProgramError for other bytes or unknown operators.

    The operators `feed` and `fetch` are removed, and the names of their variables are returned.
    """
    try:
        blocks = [_message(_BLOCK, block) for number, block in _fields(data) if number == 1]
        if not blocks:
            raise ValueError("the program has no blocks")
        feeds, fetches = _ends(blocks[0]["ops"])
        document: Json = {
            "format": "sparsefleet.program",
            "format_version": 1,
            "random_seed": 0,
            "blocks": [_block(block, set(feeds)) for block in blocks],
        }
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise ProgramError(
            f"{location}: not a program, neither JSON saved by sparsefleet nor a "
            f"PaddlePaddle 1.x ProgramDesc: {error}"
        ) from error
    return SavedProgram(document, feeds, fetches)


# -- protobuf ---------------------------------------------------------------------------------


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) pairs; varints are ints, other wire types are bytes."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, place = _varint(data, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"unknown wire type {kind} at byte {place}")
        if place + size > len(data):
            raise ValueError(
                f"the field at byte {place} ends after the message, which has {len(data)} bytes"
            )
        yield tag >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError(f"the number at byte {place} has more than 10 bytes")


def _signed(value: Any) -> int:
    number = int(value)
    return number - (1 << 64) if number >= 1 << 63 else number


def _text(value: bytes) -> str:
    return bytes(value).decode("utf-8")


def _float(value: bytes) -> float:
    return float(struct.unpack("<f", value)[0])


Schema = dict[int, tuple[str, Any, bool]]
"""Maps a field number to its name, how to read it (a function or a schema), and whether it
repeats.
"""


def _message(schema: Schema, data: bytes, depth: int = 0) -> Json:
    if depth > _MOST_DEPTH:
        raise ValueError(f"messages nest deeper than {_MOST_DEPTH}")
    found: Json = {name: [] for name, _, repeats in schema.values() if repeats}
    for number, value in _fields(data):
        if number not in schema:
            continue
        name, read, repeats = schema[number]
        if isinstance(read, dict):
            items = [_message(read, value, depth + 1)]
        elif isinstance(value, bytes) and read in (_signed, bool):
            items = [read(item) for item in _packed(value)]
        elif isinstance(value, bytes) and read is _float and len(value) != 4:
            items = [_float(value[at : at + 4]) for at in range(0, len(value), 4)]
        else:
            items = [read(value)]
        if repeats:
            found[name].extend(items)
        else:
            found[name] = items[-1]
    return found


def _packed(data: bytes) -> Iterator[int]:
    place = 0
    while place < len(data):
        value, place = _varint(data, place)
        yield value


_TENSOR_DESC: Schema = {1: ("data_type", int, False), 2: ("dims", _signed, True)}
_LOD_DESC: Schema = {1: ("tensor", _TENSOR_DESC, False), 2: ("lod_level", int, False)}
_VAR_TYPE: Schema = {
    1: ("type", int, False),
    2: ("selected_rows", _TENSOR_DESC, False),
    3: ("lod_tensor", _LOD_DESC, False),
    4: ("tensor_array", _LOD_DESC, False),
}
_VAR: Schema = {
    1: ("name", _text, False),
    2: ("type", _VAR_TYPE, False),
    3: ("persistable", bool, False),
    4: ("need_check_feed", bool, False),
}
_SLOT: Schema = {1: ("parameter", _text, False), 2: ("arguments", _text, True)}
_ATTR: Schema = {
    1: ("name", _text, False),
    2: ("type", int, False),
    3: ("i", _signed, False),
    4: ("f", _float, False),
    5: ("s", _text, False),
    6: ("ints", _signed, True),
    7: ("floats", _float, True),
    8: ("strings", _text, True),
    10: ("b", bool, False),
    11: ("bools", bool, True),
    12: ("block_idx", int, False),
    13: ("l", _signed, False),
    14: ("blocks_idx", int, True),
    15: ("longs", _signed, True),
}
_OP: Schema = {
    1: ("inputs", _SLOT, True),
    2: ("outputs", _SLOT, True),
    3: ("type", _text, False),
    4: ("attrs", _ATTR, True),
}
_BLOCK: Schema = {
    1: ("idx", int, False),
    2: ("parent_idx", _signed, False),
    3: ("vars", _VAR, True),
    4: ("ops", _OP, True),
}
# Maps an AttrType to the field that holds the value, and the value if the field is absent.
_ATTR_FIELDS: dict[int, tuple[str, Any]] = {
    0: ("i", 0),
    1: ("f", 0.0),
    2: ("s", ""),
    3: ("ints", []),
    4: ("floats", []),
    5: ("strings", []),
    6: ("b", False),
    7: ("bools", []),
    8: ("block_idx", 0),
    9: ("l", 0),
    10: ("blocks_idx", []),
    11: ("longs", []),
}


# -- converting Paddle's operators ------------------------------------------------------------


def _slots(items: Sequence[Json]) -> dict[str, list[str]]:
    return {item["parameter"]: item["arguments"] for item in items if item["arguments"]}


def _ends(ops: Sequence[Json]) -> tuple[list[str], list[str]]:
    """Return the names of fed and fetched variables, in the order of their `col` attributes."""
    found: dict[str, dict[int, str]] = {"feed": {}, "fetch": {}}
    for op in ops:
        if op["type"] in found:
            column = next((a.get("i", 0) for a in op["attrs"] if a["name"] == "col"), 0)
            slots, slot = ("outputs", "Out") if op["type"] == "feed" else ("inputs", "X")
            found[op["type"]][column] = _slots(op[slots])[slot][0]
    feeds, fetches = ([names[key] for key in sorted(names)] for names in found.values())
    return feeds, fetches


def _block(block: Json, feeds: set[str]) -> Json:
    return {
        "parent": block["parent_idx"],
        "vars": [made for item in block["vars"] if (made := _variable(item, feeds))],
        "ops": [_operator(op) for op in block["ops"] if op["type"] not in ("feed", "fetch")],
    }


def _variable(item: Json, feeds: set[str]) -> Json | None:
    kind = item["type"]
    if kind["type"] in (_FEED, _FETCH):
        return None
    held = kind.get("lod_tensor") or kind.get("tensor_array") or {}
    tensor = held.get("tensor") or kind.get("selected_rows") or {"dims": []}
    persistable = bool(item.get("persistable", False))
    made: Json = {
        "name": item["name"],
        "shape": tensor["dims"],
        "dtype": TYPE_NAMES.get(tensor.get("data_type", 5), "float32"),
        "lod_level": held.get("lod_level", 0),
        "stop_gradient": not persistable,
        "persistable": persistable,
        "is_data": item["name"] in feeds,
        "need_check_feed": bool(item.get("need_check_feed", False)),
    }
    if kind["type"] == _ARRAY:
        made["type"] = "lod_tensor_array"
    return made


def _operator(op: Json) -> Json:
    attrs: Json = {}
    for item in op["attrs"]:
        field, default = _ATTR_FIELDS[item["type"]]
        value = item.get(field, default)
        if item["name"] in _DTYPE_ATTRS and isinstance(value, int):
            value = TYPE_NAMES.get(value, "float32")
        if not item["name"].startswith("op_"):  # roles, call stacks, name scopes
            attrs[item["name"]] = value
    made: Json = {
        "type": op["type"],
        "inputs": _slots(op["inputs"]),
        "outputs": _slots(op["outputs"]),
        "attrs": attrs,
        "role": "forward",
        "site": None,
    }
    for slot in _FOR_BACKWARD:
        made["outputs"].pop(slot, None)
    change = _CHANGES.get(op["type"])
    if change is not None:
        change(made)
    return made


def _with_body(inputs: str, condition: str) -> Callable[[Json], None]:
    """Return a function that converts an operator with a sub-block, given Paddle's slot names."""

    def change(op: Json) -> None:
        results = op["outputs"].get("Out", [])
        reads, conditions = op["inputs"].get(inputs, []), op["inputs"][condition]
        # Variables that the block writes are also inputs, since they keep their values if it does
        # not run.
        names = list(dict.fromkeys([*reads, *results]))
        op["inputs"] = {"X": names, "Condition": conditions}
        op["outputs"] = {"Out": results}
        op["attrs"] |= {"condition": conditions[0], "results": results}

    return change


def _window(op: Json) -> None:
    """Convert paddings to two numbers per axis.

    Paddle also allows one number or a padding algorithm.
    """
    attrs = op["attrs"]
    if attrs.get("padding_algorithm", "EXPLICIT") != "EXPLICIT":
        attrs["paddings"] = attrs["padding_algorithm"]
    elif len(attrs["paddings"]) == len(attrs["strides"]):
        attrs["paddings"] = [number for number in attrs["paddings"] for _ in range(2)]
    if attrs.get("data_format") == "AnyLayout":
        attrs["data_format"] = "NCHW"
    if attrs.get("adaptive") and not attrs.get("global_pooling"):
        op["type"] = "adaptive_pool"


def _interpolation(method: str) -> Callable[[Json], None]:
    def change(op: Json) -> None:
        attrs = op["attrs"]
        sizes = [attrs.get(name, -1) for name in ("out_d", "out_h", "out_w")]
        op["type"] = "interpolate"
        attrs["method"] = method
        attrs["out_shape"] = [size for size in sizes if size > 0]
        attrs["data_format"] = attrs.get("data_layout", "NCHW")
        slots = {"OutSize": "OutShapeTensor", "SizeTensor": "OutShapeTensorList"}
        op["inputs"] = {slots.get(slot, slot): names for slot, names in op["inputs"].items()}

    return change


def _values(op: Json) -> None:
    """Set `values` from whichever of Paddle's lists, one per element type, is not empty."""
    names = ("fp32_values", "int32_values", "int64_values", "bool_values")
    op["attrs"]["values"] = next((v for name in names if (v := op["attrs"].get(name))), [])


def _steps(op: Json) -> None:
    op["attrs"]["steps"] = [op["attrs"].get("step_w", 0.0), op["attrs"].get("step_h", 0.0)]


def _renamed(
    type: str | None = None,
    attrs: Mapping[str, str] | None = None,
    inputs: Mapping[str, str] | None = None,
) -> Callable[[Json], None]:
    """Return a function that renames the operator, its attributes and its inputs."""

    def change(op: Json) -> None:
        op["type"] = type or op["type"]
        for kind, names in (("attrs", attrs), ("inputs", inputs)):
            op[kind] = {(names or {}).get(key, key): value for key, value in op[kind].items()}

    return change


_CHANGES: dict[str, Callable[[Json], None]] = {
    "assign_value": _values,
    "bilinear_interp": _interpolation("linear"),
    "conditional_block": _with_body("Input", "Cond"),
    "conditional_block_infer": _with_body("Input", "Cond"),
    "conv2d": _window,
    "conv2d_transpose": _window,
    "conv3d": _window,
    "conv3d_transpose": _window,
    "density_prior_box": _steps,
    "depthwise_conv2d": _window,
    "depthwise_conv2d_transpose": _window,
    "flatten": _renamed("flatten2"),
    "multiclass_nms": _renamed("multiclass_nms2"),
    "nearest_interp": _interpolation("nearest"),
    "norm": _renamed("l2_normalize"),
    "one_hot": _renamed(inputs={"depth_tensor": "DepthTensor"}),
    "one_hot_v2": _renamed(inputs={"depth_tensor": "DepthTensor"}),
    "pool2d": _window,
    "pool3d": _window,
    "prior_box": _steps,
    "reshape": _renamed("reshape2"),
    "sequence_conv": _renamed(
        attrs={"contextStart": "context_start", "contextLength": "context_length"}
    ),
    "softshrink": _renamed(attrs={"lambda": "alpha"}),
    "squeeze": _renamed("squeeze2"),
    "transpose": _renamed("transpose2"),
    "trilinear_interp": _interpolation("linear"),
    "unsqueeze": _renamed("unsqueeze2"),
    "while": _with_body("X", "Condition"),
}
"""Maps each of Paddle's operator types to the function that converts it."""
