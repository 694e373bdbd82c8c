"""The JSON in a `.pt2` archive, with rules for which graphs are accepted and what torch receives.

To turn size formulas and descriptions of nested inputs into objects, torch evaluates formulas and
imports the named types. It finds operators by walking attributes of its modules, and writes names
into Python source. Every graph is therefore checked field by field against the forms in this module
and rewritten. Notes about the model's source, guards, and hooks of other kinds of exports are
dropped.

Format: torch/_export/serde/schema.py of torch 2.9 and later.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
from typing import Any, NamedTuple

from sparsefleet.serving.export.graph_operators import is_arithmetic, is_higher_order, why_refused
from sparsefleet.serving.export.json_form import (
    RefusedError,
    boolean,
    decimal,
    fixed,
    integer,
    list_of,
    mapping,
    one_of,
    optional,
    record,
    text,
    tree_of,
    union,
)

__all__ = ["BadFormulaError", "Payload", "plain_formula", "plain_payloads", "plain_program"]

# Size formulas in a graph, such as "Add(Symbol('s0', integer=True), Integer(1))".
#
# Torch evaluates the text of a formula as Python. This module therefore rewrites the text from a
# syntax tree that contains only known parts: numbers, symbols, arithmetic and functions of sizes.
# Formulas that would take a long time to evaluate, such as towers of powers, are rejected too.

_MOST_LETTERS = 20_000
_MOST_DEPTH = 40
_MOST_TERMS = 2_000
_MOST_BITS = 2_048
_LETTERS = re.compile(r"[\w .,'()=*/%+-]*", re.ASCII)

_SYMBOL = re.compile(r"[A-Za-z_]{1,40}\d{0,9}", re.ASCII)
_NAME = re.compile(r"[a-z]{1,8}\d{1,6}|true|false|oo|int_oo", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d{1,40}(\.\d{0,40})?|\.\d{1,40})(e[+-]?\d{1,3})?|[+-]?inf", re.ASCII)
_ASSUMPTIONS = {"positive", "nonnegative", "negative", "integer", "real", "finite", "nonzero"}

_FUNCTIONS = {
    *("Add", "Mul", "Max", "Min", "Abs", "Mod", "floor", "ceiling", "Piecewise", "Tuple"),
    *("ExprCondPair", "And", "Or", "Not", "Equality", "Unequality", "Eq", "Ne", "Lt", "Le"),
    *("Gt", "Ge", "LessThan", "StrictLessThan", "GreaterThan", "StrictGreaterThan"),
    *("CeilDiv", "CeilToInt", "CleanDiv", "FloatTrueDiv", "FloorDiv", "FloorToInt", "Identity"),
    *("IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "ModularIndexing", "PythonMod"),
    *("RoundDecimal", "RoundToInt", "ToFloat", "TruncToFloat", "TruncToInt", "Where"),
}
_POWERS = {"Pow": 8, "PowByNatural": 8, "FloatPow": 8, "LShift": 62, "RShift": 62}
"""Functions whose second argument is a number, and the largest allowed value of that number."""

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "Add",
    ast.Sub: "Add",
    ast.Mult: "Mul",
    ast.Div: "Mul",
    ast.FloorDiv: "FloorDiv",
    ast.Mod: "Mod",
    ast.Pow: "Pow",
}


class BadFormulaError(ValueError):
    """Raised for a text that is not a size formula, or would take too long to evaluate."""


class _Cost(NamedTuple):
    """Upper bounds for a formula: number of terms after expansion, and bits per number."""

    terms: int
    bits: int


def plain_formula(text: str) -> str:
    """Check a formula and return it rewritten. Raises BadFormulaError.

    >>> plain_formula("Symbol('s0', positive=True)  *2")
    "Symbol('s0', positive=True) * 2"
    >>> plain_formula("__import__('os')")
    Traceback (most recent call last):
    ...
    sparsefleet.serving.export.graph_json.BadFormulaError: '__import__' is not a function of sizes
    """
    if len(text) > _MOST_LETTERS or not _LETTERS.fullmatch(text):
        raise BadFormulaError(
            "the formula is too long, or contains characters that are not allowed"
        )
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadFormulaError("the formula is not arithmetic") from error
    _check(tree.body, 0)
    return ast.unparse(tree)


def _check(node: ast.expr, depth: int) -> _Cost:
    if depth > _MOST_DEPTH:
        raise BadFormulaError("the formula is nested too deeply")
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        return _limited(1, _bits(node.value))
    if isinstance(node, ast.Name) and _NAME.fullmatch(node.id):
        return _Cost(1, 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return _check(node.operand, depth + 1)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _check_function(_OPERATORS[type(node.op)], [node.left, node.right], depth)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("Symbol", "Integer", "Rational", "Float"):
            return _check_leaf(node.func.id, node)
        if node.func.id not in _FUNCTIONS and node.func.id not in _POWERS:
            raise BadFormulaError(f"'{node.func.id}' is not a function of sizes")
        if not node.keywords:
            return _check_function(node.func.id, node.args, depth)
    raise BadFormulaError(f"'{ast.unparse(node):.80}' is not part of a size formula")


def _check_leaf(kind: str, node: ast.Call) -> _Cost:
    """Check a symbol or a number written as a call."""
    values = [_constant(value) for value in node.args]
    settings = {item.arg: _constant(item.value) for item in node.keywords}
    if kind == "Symbol" and _is_symbol(values, settings):
        return _Cost(1, 1)
    if kind == "Float" and _is_float(values, settings):
        return _Cost(1, 64)
    count = {"Integer": 1, "Rational": 2}.get(kind)
    if count == len(values) and not settings and all(type(value) is int for value in values):
        return _limited(1, sum(map(_bits, values)))
    raise BadFormulaError(f"'{ast.unparse(node):.80}' is not a symbol or a number")


def _is_symbol(values: list[object], settings: dict[str | None, object]) -> bool:
    named = len(values) == 1 and isinstance(values[0], str) and _SYMBOL.fullmatch(values[0])
    known = settings.keys() <= _ASSUMPTIONS
    return bool(named) and known and all(type(value) is bool for value in settings.values())


def _is_float(values: list[object], settings: dict[str | None, object]) -> bool:
    number = len(values) == 1 and isinstance(values[0], str) and _NUMBER.fullmatch(values[0])
    precision = settings.get("precision", 53)
    fine = type(precision) is int and 1 <= precision <= 64
    return bool(number) and fine and settings.keys() <= {"precision"}


def _constant(node: ast.expr) -> object:
    """Return the value of a literal with an optional sign, or None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _constant(node.operand)
        return -value if isinstance(value, (int, float)) else None
    return node.value if isinstance(node, ast.Constant) else None


def _check_function(name: str, arguments: list[ast.expr], depth: int) -> _Cost:
    if name in _POWERS:
        return _check_power(name, arguments, depth)
    costs = [_check(argument, depth + 1) for argument in arguments]
    terms, bits = sum(cost.terms for cost in costs), max((cost.bits for cost in costs), default=1)
    if name == "Mul":
        terms, bits = 1, sum(cost.bits for cost in costs)
        for cost in costs:
            terms *= cost.terms
            _limited(terms, bits)
    return _limited(terms, bits + len(costs).bit_length())


def _check_power(name: str, arguments: list[ast.expr], depth: int) -> _Cost:
    if len(arguments) != 2:
        raise BadFormulaError(f"'{name}' takes two arguments")
    base, power = _check(arguments[0], depth + 1), _number(arguments[1])
    if power is None or not abs(power) <= _POWERS[name]:
        raise BadFormulaError(f"the power '{ast.unparse(arguments[1]):.80}' is not a small number")
    times = max(1, int(abs(power) + 0.5))
    if "Shift" in name:
        return _limited(base.terms, base.bits + times)
    return _limited(base.terms**times, base.bits * times)


def _number(node: ast.expr) -> float | None:
    """Return the value of a number, written as a literal or a call, or None for anything else."""
    value = _constant(node)
    if isinstance(value, (int, float)):
        return value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        _check_leaf(node.func.id, node)
        values: list[Any] = [_constant(argument) for argument in node.args]
        if node.func.id in ("Integer", "Float"):
            return float(values[0])
        if node.func.id == "Rational" and values[1]:
            return float(values[0] / values[1])
    return None


def _bits(value: object) -> int:
    return value.bit_length() + 1 if isinstance(value, int) else 64


def _limited(terms: int, bits: int) -> _Cost:
    if terms > _MOST_TERMS or bits > _MOST_BITS:
        raise BadFormulaError("the formula would take too long to evaluate")
    return _Cost(terms, bits)


_MOST_NESTING = 32

_DTYPE_BYTES = {
    **dict.fromkeys((1, 2, 12, 29, 30, 31, 32, 33), 1),  # bytes, bool, float8
    **dict.fromkeys((3, 6, 13, 28), 2),  # int16, float16, bfloat16, uint16
    **dict.fromkeys((4, 7, 9, 34), 4),  # int32, float32, complex32, uint32
    **dict.fromkeys((5, 8, 10, 35), 8),  # int64, float64, complex64, uint64
    11: 16,  # complex128
}

_any_text = text(r"(?s).*", "a string")


def _name(value: Any) -> Any:
    """Check the name of a graph value, which torch writes into Python source."""
    if not isinstance(value, str) or not value.isidentifier() or keyword.iskeyword(value):
        raise RefusedError(
            f"got the name {value!r:.80}, which may run code because it is not an identifier"
        )
    return value


def _path_in_model(value: Any) -> Any:
    """Check a parameter name, which torch writes into Python source within quotes."""
    plain = isinstance(value, str) and value.isprintable() and not set(value) & set("\"'\\()")
    if not plain or any(not part or part.startswith("__") for part in value.split(".")):
        raise RefusedError(
            f"got the name {value!r:.80}, which may run code because it is not a parameter name"
        )
    return value


def _formula(value: Any) -> Any:
    if not isinstance(value, str):
        raise RefusedError(f"got {value!r:.80}, expected a size formula")
    try:
        return plain_formula(value)
    except BadFormulaError as error:
        raise RefusedError(f"got the size {value!r:.80}, which may run code: {error}") from error


def _symbol(value: Any) -> Any:
    """Check the symbol that a range applies to.

    The text stays unchanged, because torch compares it exactly and counts up to the number in it.
    """
    _formula(value)
    return value


_device = record(type=one_of("cpu"), index=one_of(None, 0))
_dtype = one_of(*_DTYPE_BYTES)
_layout = one_of(*range(1, 8))
_hint = union(as_int=integer, as_bool=boolean, as_float=decimal)
_expression = record(expr_str=_formula, hint=optional(_hint))
_size = union(as_expr=_expression, as_int=integer)
_tensor_meta = record(
    dtype=_dtype,
    sizes=list_of(_size),
    requires_grad=boolean,
    device=_device,
    strides=list_of(_size),
    storage_offset=_size,
    layout=_layout,
)

_tensor = record(name=_name)
_size_argument = union(as_name=_name, as_int=integer)
_number_argument = union(as_name=_name, as_float=decimal)
_truth_argument = union(as_name=_name, as_bool=boolean)
_optional_tensor = union(as_tensor=_tensor, as_none=boolean)


def _argument(value: Any) -> Any:
    return _any_argument(value)


def _subgraph(value: Any) -> Any:
    return record(name=_name, graph=_graph)(value)


# Excludes functions and custom objects, because these are pickled.
_any_argument = union(
    as_none=boolean,
    as_tensor=_tensor,
    as_tensors=list_of(_tensor),
    as_int=integer,
    as_ints=list_of(integer),
    as_float=decimal,
    as_floats=list_of(decimal),
    as_string=_any_text,
    as_strings=list_of(_any_text),
    as_sym_int=_size_argument,
    as_sym_ints=list_of(_size_argument),
    as_scalar_type=_dtype,
    as_memory_format=one_of(1, 2, 3, 4),
    as_layout=_layout,
    as_device=_device,
    as_bool=boolean,
    as_bools=list_of(boolean),
    as_sym_bool=_truth_argument,
    as_sym_bools=list_of(_truth_argument),
    as_graph=_subgraph,
    as_optional_tensors=list_of(_optional_tensor),
    as_sym_float=_number_argument,
    as_sym_floats=list_of(_number_argument),
    as_optional_tensor=_optional_tensor,
    as_complex=record(real=decimal, imag=decimal),
    as_nested_tensors=list_of(list_of(_tensor)),
    as_int_lists=list_of(list_of(integer)),
    as_string_to_argument=mapping(_any_text, _argument),
    as_float_lists=list_of(list_of(decimal)),
)
_OF_ARITHMETIC = {
    *("as_int", "as_float", "as_bool", "as_none", "as_sym_int", "as_sym_float", "as_sym_bool"),
    *("as_sym_ints", "as_ints"),
}


def _target(value: Any) -> Any:
    if not isinstance(value, str):
        raise RefusedError(f"got {value!r:.80}, expected the name of an operator")
    why = why_refused(value)
    if why is not None:
        raise RefusedError(f"the graph calls {value!r:.80}, which is refused: {why}")
    return value


_node_fields = record(
    target=_target,
    inputs=list_of(
        record(
            name=text(r"(?a:\w{0,100})", "the name of an argument"),
            arg=_any_argument,
            kind=one_of(None, 0, 1, 2),
        )
    ),
    outputs=list_of(_any_argument),
    metadata=fixed({}),
    is_hop_single_tensor_return=optional(boolean),
    name=optional(_name),
)


def _node(value: Any) -> Any:
    found = _node_fields(value)
    target = found.get("target", "")
    kinds = {kind for item in found.get("inputs", ()) for kind in item.get("arg", ())}
    if is_arithmetic(target) and not kinds <= _OF_ARITHMETIC:
        raise RefusedError(f"the graph calls {target!r} with arguments that are not numbers")
    if "as_graph" in kinds and not is_higher_order(target):
        raise RefusedError(f"the graph calls {target!r:.80} with a graph as an argument")
    return found


_graph = record(
    inputs=list_of(_any_argument),
    outputs=list_of(_any_argument),
    nodes=list_of(_node),
    tensor_values=mapping(_name, _tensor_meta),
    sym_int_values=mapping(_name, _size),
    sym_bool_values=mapping(_name, union(as_expr=_expression, as_bool=boolean)),
    is_single_tensor_return=boolean,
    custom_obj_values=one_of({}),
    sym_float_values=mapping(_name, union(as_expr=_expression, as_float=decimal)),
)

_input_spec = union(
    user_input=record(arg=_any_argument),
    parameter=record(arg=_tensor, parameter_name=_path_in_model),
    buffer=record(arg=_tensor, buffer_name=_path_in_model, persistent=boolean),
    tensor_constant=record(arg=_tensor, tensor_constant_name=_path_in_model),
    constant_input=record(
        name=_name,
        value=union(
            as_none=boolean, as_int=integer, as_float=decimal, as_string=_any_text, as_bool=boolean
        ),
    ),
)
_output_spec = union(
    user_output=record(arg=_any_argument),
    buffer_mutation=record(arg=_tensor, buffer_name=_path_in_model),
    parameter_mutation=record(arg=_tensor, parameter_name=_path_in_model),
    user_input_mutation=record(arg=_tensor, user_input_name=_name),
)


def _tree_spec(value: Any) -> Any:
    """Check how inputs or outputs are nested, given as JSON within a string."""
    if not isinstance(value, str):
        raise RefusedError(f"got {value!r:.80}, expected a string")
    tree = tree_of(value)
    if not isinstance(tree, list) or len(tree) != 2 or tree[0] != 1:
        raise RefusedError("the graph describes nested values in an unknown format")
    return json.dumps([1, _nest(tree[1], 0)])


def _nest(value: Any, depth: int) -> Any:
    """Check a leaf, or a nested tuple, list or dict. Torch would import any other type."""
    if not isinstance(value, dict) or value.keys() != {"type", "context", "children_spec"}:
        raise RefusedError("the graph describes nested values in an unknown format")
    kind, context, children = value["type"], value["context"], value["children_spec"]
    if depth > _MOST_NESTING or not isinstance(children, list):
        raise RefusedError("the graph describes values that are nested too deeply")
    if kind == "builtins.dict" and isinstance(context, str):
        names = list_of(_name)(tree_of(context))
        if len(names) != len(children) or len(set(names)) != len(names):
            raise RefusedError("the graph describes a dict with missing or repeated keys")
        context = json.dumps(names)
    elif (kind, context, children) != (None, None, []) and (kind, context) not in (
        ("builtins.tuple", "null"),
        ("builtins.list", "null"),
    ):
        raise RefusedError(
            f"the graph nests values in {kind!r:.80} with {context!r:.80}, which may run code; "
            "expected a plain tuple, list or dict"
        )
    parts = [_nest(child, depth + 1) for child in children]
    return {"type": kind, "context": context, "children_spec": parts}


def _argument_names(value: Any) -> Any:
    names = list_of(_name)(value)
    if "self" in names or len(set(names)) != len(names):
        raise RefusedError("the names of the arguments are not distinct")
    return names


_call_signature = record(
    inputs=fixed([]),
    outputs=fixed([]),
    in_spec=_tree_spec,
    out_spec=_tree_spec,
    forward_arg_names=optional(_argument_names),
)


def _call_graph(value: Any) -> Any:
    """Check the model's call signature, and drop the signatures of its submodules."""
    if not isinstance(value, list) or not value:
        raise RefusedError("the graph does not describe the call signature of the model")
    return [record(fqn=one_of(""), signature=_call_signature)(value[0])]


_range = record(min_val=optional(integer), max_val=optional(integer))
_program = record(
    graph_module=record(
        graph=_graph,
        signature=record(input_specs=list_of(_input_spec), output_specs=list_of(_output_spec)),
        module_call_graph=_call_graph,
        metadata=fixed({}),
        treespec_namedtuple_fields=fixed({}),
    ),
    opset_version=mapping(text(r"(?a:\w{1,100})", "the name of a library"), integer),
    range_constraints=mapping(_symbol, _range),
    schema_version=record(major=integer, minor=integer),
    verifiers=list_of(one_of("TRAINING", "ATEN")),
    torch_version=text(r"(?a:[\w.+<=-]{1,100})", "a version"),
    guards_code=fixed([]),
)


def plain_program(raw: bytes) -> bytes:
    """Return a graph as JSON, rewritten from checked parts only. Raises RefusedError."""
    try:
        return json.dumps(_program(tree_of(raw))).encode()
    except RecursionError as error:
        raise RefusedError("the graph is nested too deeply") from error


class Payload(NamedTuple):
    """The element type and size that one file of the archive needs for the tensors in it."""

    dtype: int
    elements: int
    """Number of elements the file must hold to cover all tensors' values."""

    @property
    def element_bytes(self) -> int:
        return _DTYPE_BYTES[self.dtype]


def _stored_size(value: Any) -> Any:
    if integer(value) < 0:
        raise RefusedError(f"got {value}, expected the size of a stored tensor")
    return value


def _not_pickled(value: Any) -> Any:
    if value is not False:
        raise RefusedError("the tensor is pickled, and loading a pickle may run code")
    return value


_stored_tensor = record(
    path_name=text(r"(?a:(weight|tensor)_\d{1,9})", "the name of a file of plain numbers"),
    is_param=boolean,
    use_pickle=_not_pickled,
    tensor_meta=record(
        dtype=_dtype,
        sizes=list_of(union(as_int=_stored_size)),
        requires_grad=boolean,
        device=_device,
        strides=list_of(union(as_int=_stored_size)),
        storage_offset=union(as_int=_stored_size),
        layout=one_of(7),
    ),
)
_payloads = record(config=mapping(_path_in_model, _stored_tensor))


def plain_payloads(raw: bytes) -> tuple[bytes, dict[str, Payload]]:
    """Return the checked description of stored tensors as JSON, and what each file must hold.

    Raises RefusedError.
    """
    found = _payloads(tree_of(raw))
    files: dict[str, Payload] = {}
    for name, tensor in found.get("config", {}).items():
        try:
            file, needed = _payload(tensor)
            before = files.get(file, needed)
            if before.dtype != needed.dtype:
                raise RefusedError(f"'{file}' holds numbers of two types")
            files[file] = Payload(needed.dtype, max(before.elements, needed.elements))
        except (KeyError, ValueError) as error:
            missing = isinstance(error, KeyError)
            why = f"it lacks the field {error}" if missing else str(error)
            raise RefusedError(f"the tensor '{name}': {why}") from error
    return json.dumps(found).encode(), files


def _payload(tensor: Any) -> tuple[str, Payload]:
    meta = tensor["tensor_meta"]
    sizes = [size["as_int"] for size in meta["sizes"]]
    strides = [stride["as_int"] for stride in meta["strides"]]
    last = meta["storage_offset"]["as_int"]
    for size, stride in zip(sizes, strides, strict=True):
        last += (size - 1) * stride
    return tensor["path_name"], Payload(meta["dtype"], 0 if 0 in sizes else last + 1)
