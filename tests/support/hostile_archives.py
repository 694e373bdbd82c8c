"""A corpus of hostile `.pt2` archives: each would run code, read files or exhaust memory if
trusted.

A case changes the archive of a real export. Those that run code touch `marker`, directly or by
importing `planted`, a module that a test puts on the path.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.forged_zip import Contents, Entry, plain, zip64_extra, zip_of

MODEL = "archive/models/model.json"
WEIGHTS = "archive/data/weights/model_weights_config.json"
PLANTED = "planted_by_a_stranger"

Build = Callable[[Contents, Path], bytes]


def command(marker: Path) -> str:
    """Return Python code that touches the marker without using any name."""
    return f"__import__('os').system('touch {marker}')"


def first(entries: list[Entry], ending: str) -> Entry:
    return next(entry for entry in entries if entry.name.endswith(ending))


# ---------------------------------------------------------------------------------- zip files


def two_directories(contents: Contents, marker: Path) -> bytes:
    """Readers that count from the end find a harmless graph, those that trust offsets another."""
    hostile = zip_of(plain(_with_graph(contents, size_is_code, marker)))
    harmless = zip_of(plain(contents))
    size, start = struct.unpack("<2L", hostile[-10:-2])
    size_b, start_b = struct.unpack("<2L", harmless[-10:-2])
    assert size == size_b
    body = hostile[: start + size]
    shift = len(body) + start_b - start  # the shift that the first kind applies to all offsets
    directory = bytearray(harmless[start_b : start_b + size])
    at = 0
    while at < size:
        lengths = struct.unpack_from("<3H", directory, at + 28)
        (offset,) = struct.unpack_from("<L", directory, at + 42)
        struct.pack_into("<L", directory, at + 42, (offset + len(body) - shift) % 2**32)
        at += 46 + sum(lengths)
    return body + harmless[:start_b] + bytes(directory) + hostile[-22:]


def two_directories_by_zip64(contents: Contents, marker: Path) -> bytes:
    """The end record names a harmless directory, the zip64 end record a hostile one."""
    hostile = zip_of(plain(_with_graph(contents, size_is_code, marker)))[:-22]
    size, start = struct.unpack("<2L", zip_of(plain(contents))[-10:-2])
    whole = zip_of(plain(contents), prefix=b"")
    both = hostile + whole[:-22]
    count = len(contents)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(both), 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, size, len(hostile) + start, 0)
    return both + end64 + locator + end


def twice(contents: Contents, marker: Path) -> bytes:
    entries = plain(contents)
    changed = _with_graph(contents, size_is_code, marker)[MODEL]
    return zip_of([Entry(MODEL, changed), *entries])


def overlapping(contents: Contents, marker: Path) -> bytes:
    """Two names for the same bytes."""
    entries = plain(contents)
    first(entries, "model.pt").central["offset"] = 0
    return zip_of(entries)


def unlisted(contents: Contents, marker: Path) -> bytes:
    hidden = Entry(MODEL, _with_graph(contents, size_is_code, marker)[MODEL], listed=False)
    return zip_of([hidden, *plain(contents)])


def renamed_within(contents: Contents, marker: Path) -> bytes:
    """The directory and the local header give an entry different names."""
    entries = plain(contents)
    first(entries, "byteorder").local["name"] = "archive/data/weights/model.pt"
    return zip_of(entries)


def deflated(contents: Contents, marker: Path) -> bytes:
    """A small file that decompresses to a large one."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(b" " * 50_000_000) + packer.flush()
    return zip_of([Entry(MODEL, bomb, method=8), *plain(_without(contents, MODEL))])


def changed_entry(ending: str, **fields: Any) -> Build:
    def build(contents: Contents, marker: Path) -> bytes:
        entries = plain(contents)
        for name, value in fields.items():
            setattr(first(entries, ending), name, value)
        return zip_of(entries)

    return build


def changed_end(**end: Any) -> Build:
    return lambda contents, _: zip_of(plain(contents), end=end)


def added(name: str, raw: bytes = b"x") -> Build:
    return lambda contents, _: zip_of([*plain(contents), Entry(name, raw)])


def _without(contents: Contents, *names: str) -> Contents:
    return {name: raw for name, raw in contents.items() if name not in names}


# -------------------------------------------------------------------------------------- graphs


def _with_graph(
    contents: Contents, change: Callable[[dict[str, Any], Path], None], marker: Path
) -> Contents:
    graph = json.loads(contents[MODEL])
    change(graph, marker)
    return {**contents, MODEL: json.dumps(graph).encode()}


def graph(change: Callable[[dict[str, Any], Path], None]) -> Build:
    return lambda contents, marker: zip_of(plain(_with_graph(contents, change, marker)))


def _nodes(content: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = content["graph_module"]["graph"]["nodes"]
    return found


def _relu(content: dict[str, Any]) -> dict[str, Any]:
    return next(
        node for node in _nodes(content) if node["target"].startswith("torch.ops.aten.relu")
    )


def _signature(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["graph_module"]["module_call_graph"][0]["signature"]
    return found


def _sizes(content: dict[str, Any]) -> dict[str, Any]:
    values = content["graph_module"]["graph"]["sym_int_values"]
    found: dict[str, Any] = next(iter(values.values()))["as_expr"]
    return found


def _argument(value: dict[str, Any]) -> dict[str, Any]:
    return {"name": "", "arg": value, "kind": 1}


def size_is_code(content: dict[str, Any], marker: Path) -> None:
    _sizes(content)["expr_str"] = command(marker)


def size_is(text: str) -> Build:
    def change(content: dict[str, Any], marker: Path) -> None:
        _sizes(content)["expr_str"] = text

    return graph(change)


def spec_is(which: str, kind: str | None, context: Any) -> Build:
    """Inputs or outputs nested in something other than a tuple."""

    def change(content: dict[str, Any], marker: Path) -> None:
        spec = json.loads(_signature(content)[which])
        spec[1] |= {"type": kind, "context": context}
        _signature(content)[which] = json.dumps(spec)

    return graph(change)


def spec_within(content: dict[str, Any], marker: Path) -> None:
    """A type that runs code, deep within tuples."""
    leaf: Any = {"type": "builtins.tuple", "context": _ENUM, "children_spec": []}
    for _ in range(5):
        leaf = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf]}
    _signature(content)["out_spec"] = json.dumps([1, leaf])


def spec_too_deep(content: dict[str, Any], marker: Path) -> None:
    tree = '{"type": "builtins.tuple", "context": "null", "children_spec": ['
    _signature(content)["in_spec"] = f"[1, {tree * 5000}{']}' * 5000}]"


def spec_key_is_code(content: dict[str, Any], marker: Path) -> None:
    signature = _signature(content)
    spec = json.loads(signature["in_spec"])
    leaf = {"type": None, "context": None, "children_spec": []}
    keys = json.dumps([f"x={command(marker)}"])
    spec[1]["children_spec"][1] = {
        "type": "builtins.dict",
        "context": keys,
        "children_spec": [leaf],
    }
    signature |= {"in_spec": json.dumps(spec), "forward_arg_names": None}


_ENUM = json.dumps({"__enum__": True, "fqn": f"{PLANTED}:x", "name": "y"})
_FACTORY = {
    "default_factory_module": PLANTED,
    "default_factory_name": "x",
    "dict_context": [],
}


def argument_name_is_code(content: dict[str, Any], marker: Path) -> None:
    """Two names that, inserted into the source of a function, end it and run other code."""
    names = _signature(content)["forward_arg_names"]
    names[-2] = f'x, y={command(marker)}): return 0\n"""'
    names[-1] = "\"\"\"\n'''\ndef g():\n    0 #"


def value_name_is_code(content: dict[str, Any], marker: Path) -> None:
    inner = content["graph_module"]["graph"]
    text = json.dumps(inner).replace('"relu"', json.dumps(f"relu = 0; import {PLANTED}; relu"))
    content["graph_module"]["graph"] = json.loads(text)


def parameter_name_is_code(content: dict[str, Any], marker: Path) -> None:
    specs = content["graph_module"]["signature"]["input_specs"]
    named = next(spec["parameter"] for spec in specs if "parameter" in spec)
    named["parameter_name"] = f'w", open("{marker}", "w")) #'


def calls(target: str, *arguments: dict[str, Any]) -> Build:
    def change(content: dict[str, Any], marker: Path) -> None:
        node = _relu(content)
        node["target"] = target
        if arguments:
            node["inputs"] = [_argument(argument) for argument in arguments]
            node["is_hop_single_tensor_return"] = True

    return graph(change)


def file_by_way_of_another(content: dict[str, Any], marker: Path) -> None:
    """An operator that calls the operator passed to it, which reads any file."""
    node = _relu(content)
    node["target"] = "torch.ops.higher_order.wrap_with_set_grad_enabled"
    node["inputs"] = [
        _argument({"as_bool": False}),
        _argument({"as_operator": "torch.ops.aten.from_file.default"}),
        _argument({"as_string": "/etc/hostname"}),
        _argument({"as_bool": False}),
        _argument({"as_int": 4}),
    ]


def argument_is(value: dict[str, Any]) -> Build:
    def change(content: dict[str, Any], marker: Path) -> None:
        _relu(content)["inputs"].append(_argument(value))

    return graph(change)


def counts_for_ever(content: dict[str, Any], marker: Path) -> None:
    """Torch counts up to the number in the name of a size."""
    content["range_constraints"]["u99999999999999"] = {"min_val": 0, "max_val": None}


def nested_too_deep(contents: Contents, marker: Path) -> bytes:
    return zip_of(plain({**contents, MODEL: b"[" * 200_000}))


def key_twice(contents: Contents, marker: Path) -> bytes:
    """Two graphs in one document."""
    raw = contents[MODEL].decode().rstrip()
    other = json.dumps(json.loads(_with_graph(contents, size_is_code, marker)[MODEL]))
    return zip_of(plain({**contents, MODEL: f"{raw[:-1]}, {other[1:]}".encode()}))


def last_of_many_keys_twice(contents: Contents, marker: Path) -> bytes:
    """A megabyte that took minutes to refuse."""
    keys = ",".join(f'"{number}":0' for number in range(100_000))
    return zip_of(plain({**contents, MODEL: f'{{{keys},"99999":0}}'.encode()}))


# ------------------------------------------------------------------------------------- tensors


def tensor_is(change: Callable[[dict[str, Any]], Any]) -> Build:
    def build(contents: Contents, marker: Path) -> bytes:
        config = json.loads(contents[WEIGHTS])
        change(next(iter(config["config"].values())))
        return zip_of(plain({**contents, WEIGHTS: json.dumps(config).encode()}))

    return build


def empty_file_of_a_large_tensor(contents: Contents, marker: Path) -> bytes:
    """Torch fills up an empty file: a terabyte of zeros."""
    config = json.loads(contents[WEIGHTS])
    meta = config["config"]["model.score.bias"]["tensor_meta"]
    meta["sizes"] = [{"as_int": 1 << 38}]
    changed = {WEIGHTS: json.dumps(config).encode(), "archive/data/weights/weight_3": b""}
    return zip_of(plain({**contents, **changed}))


class _Touch:
    """Unpickled, it touches the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def pickled(name: str) -> Build:
    def build(contents: Contents, marker: Path) -> bytes:
        return zip_of(plain({**contents, name: pickle.dumps(_Touch(marker))}))

    return build


def pickled_weight(contents: Contents, marker: Path) -> bytes:
    config = json.loads(contents[WEIGHTS])
    entry = next(iter(config["config"].values()))
    entry["use_pickle"] = True
    changed = {
        WEIGHTS: json.dumps(config).encode(),
        f"archive/data/weights/{entry['path_name']}": pickle.dumps(_Touch(marker)),
    }
    return zip_of(plain({**contents, **changed}))


def python_writes(contents: Contents, marker: Path) -> bytes:
    """An archive made by Python's own writer, whose entry is of the legacy format of weights."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, raw in contents.items():
            archive.writestr(name, raw)
        archive.writestr("archive/data/weights/model.pt", pickle.dumps(_Touch(marker)))
    return stream.getvalue()


class Case(NamedTuple):
    """How to build an archive, and the expected error."""

    build: Build
    message: str


_DEEP = "Pow(" * 9 + "Integer(9)" + ", Integer(8))" * 9

CASES: dict[str, Case] = {
    # Zip files.
    "two directories": Case(two_directories, "the directory is at bytes"),
    "two directories by zip64": Case(two_directories_by_zip64, "two end records disagree"),
    "entry twice": Case(twice, "contains 'archive/models/model.json' twice"),
    "entries overlap": Case(overlapping, "do not belong to it"),
    "entry that is not listed": Case(unlisted, "neither overlap nor leave gaps"),
    "bytes before": Case(
        lambda contents, _: zip_of(plain(contents), prefix=b"#!/bin/sh\n"),
        "neither overlap nor leave gaps",
    ),
    "bytes before that nothing counts": Case(
        lambda contents, _: b"#!/bin/sh\n" + zip_of(plain(contents)), "the directory is at bytes"
    ),
    "bytes after": Case(changed_end(after=b"tail"), "does not end with the end record"),
    "comment": Case(changed_end(comment=b"PK\5\6"), "does not end with the end record"),
    "bytes after the directory": Case(changed_end(before=b"?" * 9), "the directory is at bytes"),
    "wrong number of entries": Case(changed_end(count=3), "lists 13 entries, expected 3"),
    "directory beyond the end": Case(changed_end(start=0xFFFFFF00), "the directory is at bytes"),
    "zip64 record that is not there": Case(
        changed_end(start=0xFFFFFFFF), "lacks the zip64 record that it refers to"
    ),
    "names that differ": Case(renamed_within, "is called .* in its local header"),
    "sizes that differ": Case(
        changed_entry("model.json", local={"size": 3, "packed": 3}), "different size or CRC-32"
    ),
    "size too large": Case(
        changed_entry(
            "model.json",
            central={"size": 0x7FFFFFFF, "packed": 0x7FFFFFFF},
            local={"size": 0x7FFFFFFF, "packed": 0x7FFFFFFF},
        ),
        "which end at byte .* do not belong to it",
    ),
    "size too small": Case(
        changed_entry(
            "model.json", central={"size": 9, "packed": 9}, local={"size": 9, "packed": 9}
        ),
        "do not belong to it",
    ),
    "zip64 size that is huge": Case(
        changed_entry(
            "model.json",
            central={
                "size": 0xFFFFFFFF,
                "packed": 0xFFFFFFFF,
                "extra": zip64_extra(1 << 62, 1 << 62),
            },
        ),
        "different size or CRC-32",
    ),
    "zip64 field that nothing refers to": Case(
        changed_entry("model.json", central={"extra": zip64_extra(1, 1)}),
        "zip64 field that its header does not refer to",
    ),
    "zip64 field that is missing": Case(
        changed_entry("model.json", central={"offset": 0xFFFFFFFF}),
        "lacks the zip64 field that it refers to",
    ),
    "unknown extra field": Case(
        changed_entry("model.json", local={"extra": struct.pack("<2H", 0x7075, 0)}),
        "unknown or damaged extra field",
    ),
    "wrong checksum": Case(
        changed_entry("model.json", central={"crc": 7}, local={"crc": 7}), "has the CRC-32"
    ),
    "wrong data descriptor": Case(
        changed_entry("model.json", flags=8, descriptor=b"PK\7\x08" + b"\1" * 12),
        "do not belong to it",
    ),
    "data descriptor that is missing": Case(
        changed_entry("model.json", flags=8), "do not belong to it"
    ),
    "compressed": Case(deflated, "is compressed"),
    "encrypted": Case(changed_entry("model.json", flags=1), "encrypted"),
    "link": Case(changed_entry("model.json", attributes=0o120777 << 16), "is a link"),
    "path out of the archive": Case(added("archive/../../etc/x"), "which may run code"),
    "path from the root": Case(added("/etc/x"), "which may run code"),
    "path of Windows": Case(added("archive\\models\\model.json"), "which may run code"),
    "another folder": Case(added("other/models/model.json"), "which may run code"),
    "a second model": Case(added("archive/models/other.json"), "which may run code"),
    "compiled code": Case(added("archive/data/aotinductor/model/x.so"), "which may run code"),
    "extra file": Case(added("archive/extra/x"), "which may run code"),
    "custom object": Case(added("archive/data/constants/custom_obj_0"), "which may run code"),
    "legacy weights": Case(pickled("archive/data/weights/model.pt"), "which may run code"),
    "legacy weights by Python": Case(python_writes, "which may run code"),
    "legacy format": Case(added("version"), "which may run code"),
    "empty": Case(lambda *_: b"", "fewer than an empty zip archive"),
    "without entries": Case(lambda *_: zip_of([]), "the archive lacks"),
    "noise": Case(lambda *_: b"noise" * 100, "does not end with the end record"),
    "entry missing": Case(
        lambda contents, _: zip_of(plain(_without(contents, MODEL))),
        "the archive lacks 'models/model.json'",
    ),
    # Text that torch evaluates, imports or writes into source.
    "size is code": Case(graph(size_is_code), "got the size '?\"?__import__"),
    "size has an attribute": Case(size_is("s0.__class__"), "is not part of a size formula"),
    "size calls": Case(size_is("eval('1')"), "'eval' is not a function of sizes"),
    "size holds a string": Case(size_is("Max('os.system')"), "is not part of a size formula"),
    "size is a tower of powers": Case(size_is(_DEEP), "would take too long"),
    "size is shifted far": Case(size_is("LShift(Integer(1), Integer(10))*9**99"), "small number"),
    "size has many terms": Case(
        size_is("*".join(f"(s{i}+t{i})" for i in range(40))), "would take too long"
    ),
    "size is lambda": Case(size_is("(lambda: 0)()"), "characters that are not allowed"),
    "input spec imports": Case(spec_is("in_spec", "builtins.tuple", _ENUM), "nests values in"),
    "output spec imports": Case(spec_is("out_spec", "builtins.tuple", _ENUM), "nests values in"),
    "dict of the spec imports": Case(
        spec_is("out_spec", "builtins.dict", _ENUM), "expected a list"
    ),
    "spec is a defaultdict": Case(
        spec_is("in_spec", "collections.defaultdict", _FACTORY), "nests values in"
    ),
    "spec is a namedtuple": Case(
        spec_is("out_spec", "collections.namedtuple", "x"), "nests values in"
    ),
    "spec imports deep within": Case(graph(spec_within), "nests values in"),
    "spec too deep": Case(graph(spec_too_deep), "in_spec: the .*(too deep|not JSON)"),
    "key of the spec is code": Case(graph(spec_key_is_code), "it is not an identifier"),
    "argument's name is code": Case(graph(argument_name_is_code), "it is not an identifier"),
    "value's name is code": Case(graph(value_name_is_code), "it is not an identifier"),
    "parameter's name is code": Case(graph(parameter_name_is_code), "it is not a parameter name"),
    # Calls.
    "calls the system": Case(calls("torch.os.system"), "'torch.os.system', which is refused"),
    "calls a method": Case(calls("torch.ops.aten.relu.__class__"), "which is refused"),
    "reads files": Case(calls("torch.ops.aten.from_file.default"), "which is refused"),
    "reads files by way of another": Case(graph(file_by_way_of_another), "kind 'as_operator'"),
    "loads a library": Case(
        calls("torch.ops.load_library.__call__", {"as_string": "x.so"}), "which is refused"
    ),
    "imports a module": Case(
        calls("torch.ops.import_module.__call__.x", {"as_string": PLANTED}), "which is refused"
    ),
    "makes calls": Case(calls("_operator.methodcaller"), "which is refused"),
    "arithmetic on strings": Case(
        calls("_operator.mul", {"as_string": "x"}, {"as_int": 1 << 40}), "that are not numbers"
    ),
    "belongs to another library": Case(
        calls("torch.ops.debugprims.load_tensor.default"), "allow_operators"
    ),
    "object of another class": Case(
        argument_is({"as_custom_obj": {"name": "x", "class_fqn": "y"}}), "kind 'as_custom_obj'"
    ),
    "another device": Case(
        argument_is({"as_device": {"type": "cuda", "index": 0}}), "expected 'cpu'"
    ),
    "counts for ever": Case(graph(counts_for_ever), "u99999999999999"),
    "nested too deep": Case(nested_too_deep, "not JSON"),
    "last of many keys twice": Case(last_of_many_keys_twice, "key '99999' twice"),
    "key twice": Case(key_twice, "key 'graph_module' twice"),
    # Tensors.
    "pickled weight": Case(pickled_weight, "the tensor is pickled"),
    "pickled examples": Case(pickled("archive/data/sample_inputs/model.pt"), "pickled examples"),
    "tensor beyond its file": Case(
        tensor_is(lambda entry: entry["tensor_meta"].update(storage_offset={"as_int": 1 << 40})),
        "bytes, expected .* numbers",
    ),
    "tensor before its file": Case(
        tensor_is(lambda entry: entry["tensor_meta"].update(storage_offset={"as_int": -1})),
        "expected the size of a stored tensor",
    ),
    "tensor of another rank": Case(
        tensor_is(lambda entry: entry["tensor_meta"].update(strides=[])), "the tensor 'model."
    ),
    "tensor whose size is code": Case(
        tensor_is(
            lambda entry: entry["tensor_meta"].update(
                sizes=[{"as_expr": {"expr_str": "1"}}, {"as_int": 1}]
            )
        ),
        "kind 'as_expr'",
    ),
    "tensor of an empty file": Case(empty_file_of_a_large_tensor, "has 0 bytes, expected"),
    "tensor in another file": Case(
        tensor_is(lambda entry: entry.update(path_name="../../models/model.json")),
        "expected the name of a file of plain numbers",
    ),
    "tensor in a file that is not there": Case(
        tensor_is(lambda entry: entry.update(path_name="weight_77")),
        "lacks 'data/weights/weight_77'",
    ),
}
