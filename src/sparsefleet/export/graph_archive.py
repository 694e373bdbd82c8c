"""What a `.pt2` archive may hold, so that reading it unpickles nothing and runs no code.

Torch turns the sizes in a graph into formulas by evaluating text as Python, finds operators by
walking attributes of its modules, and writes names into Python source. So all three are checked
before torch sees them.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils._sympy import functions as size_functions

from sparsefleet.errors import CorruptFileError

__all__ = ["refuse_code"]

# A graph, plain tensors and their descriptions; example inputs, which are pickled, must be empty.
_PLAIN = re.compile(
    r"(models/model\.json|data/(weights|constants)/(model_\w+_config\.json|(weight|tensor)_\d+)"
    r"|archive_format|archive_version|byteorder|version|\.data/(version|serialization_id)"
    r"|\.format_version|\.storage_alignment)"
)
_EXAMPLES = "data/sample_inputs/model.pt"
_PLAIN_PAYLOAD = re.compile(r"(weight|tensor)_\d+")

_OPERATOR = re.compile(
    r"torch\.ops\.\w+\.\w+(\.\w+)?|_operator\.[a-z]\w*|math\.[a-z]\w*|torch\._?sym_\w+"
)
_FILE_OPERATOR = re.compile(r"torch\.ops\.aten\.(from_file|save|load)\b.*")

_NAME_FIELDS = {"name", "fqn", "parameter_name", "buffer_name", "tensor_constant_name"}
_NAME = re.compile(r"[^\"'\\()\r\n]*")

_FORMULA_LETTERS = 10_000
_FORMULA_TEXT = re.compile(r"[\w.+-]*")
_FORMULA_NODES: tuple[type[ast.AST], ...] = (
    *(ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant),
    *(ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop),
)
_FORMULA_FUNCTIONS = {
    *size_functions.__all__,
    *("Add", "Mul", "Pow", "Mod", "Max", "Min", "Abs", "floor", "ceiling", "Piecewise", "Tuple"),
    *("Symbol", "Integer", "Rational", "Float", "And", "Or", "Not", "Equality", "Unequality"),
    *("LessThan", "StrictLessThan", "GreaterThan", "StrictGreaterThan"),
}


def refuse_code(path: Path) -> None:
    """Raises CorruptFileError if torch would unpickle, load or run something of the archive."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            name = entry.filename.partition("/")[2]
            if name == _EXAMPLES and entry.file_size == 0:
                continue
            if not _PLAIN.fullmatch(name):
                raise CorruptFileError(f"{path} holds '{name}', which is not read: it may run code")
            if name.endswith("_config.json"):
                _refuse_pickled(path, json.loads(archive.read(entry)))
            elif name.endswith(".json"):
                _refuse_calls(path, json.loads(archive.read(entry)))


def _refuse_pickled(path: Path, config: Any) -> None:
    entries = config.get("config", {}) if isinstance(config, dict) else {}
    for tensor, entry in entries.items():
        plain = _PLAIN_PAYLOAD.fullmatch(str(entry.get("path_name")))
        if entry.get("use_pickle") is not False or not plain:
            raise CorruptFileError(f"{path} holds '{tensor}' pickled, which is not read")


def _refuse_calls(path: Path, graph: Any) -> None:
    for name, text in _fields(graph):
        if name == "target" and not _is_operator(text):
            raise CorruptFileError(
                f"{path} calls '{text!s:.80}', which is not run: it is no operator of a graph"
            )
        if name in _NAME_FIELDS and isinstance(text, str) and not _NAME.fullmatch(text):
            raise CorruptFileError(
                f"{path} has the name '{text!s:.80}', which is not read: it may run code"
            )
        if name == "expr_str" and not _is_formula(text):
            raise CorruptFileError(
                f"{path} has the size '{text!s:.80}', which is not read: it may run code"
            )


def _fields(nest: Any) -> Iterator[tuple[str, Any]]:
    """All fields of all objects in a nest of JSON."""
    waiting = [nest]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield from part.items()
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _is_operator(target: Any) -> bool:
    if target is None or isinstance(target, dict):  # of other fields of that name
        return True
    text = str(target)
    return bool(_OPERATOR.fullmatch(text)) and not _FILE_OPERATOR.fullmatch(text)


def _is_formula(text: Any) -> bool:
    """Whether the text is made of numbers, symbols and functions of sizes alone."""
    if not isinstance(text, str) or len(text) > _FORMULA_LETTERS:
        return False
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_part_of_formula(node) for node in nodes)


def _is_part_of_formula(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FORMULA_FUNCTIONS
    if isinstance(node, ast.Name):
        return not node.id.startswith("_")
    if isinstance(node, ast.Constant):
        number = isinstance(node.value, (int, float))
        return number or (isinstance(node.value, str) and bool(_FORMULA_TEXT.fullmatch(node.value)))
    return isinstance(node, _FORMULA_NODES)
