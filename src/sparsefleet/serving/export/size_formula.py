"""Size formulas in a graph, such as "Add(Symbol('s0', integer=True), Integer(1))".

Torch evaluates the text of a formula as Python. This module therefore rewrites the text from a
syntax tree that contains only known parts: numbers, symbols, arithmetic and functions of sizes.
Formulas that would take a long time to evaluate, such as towers of powers, are rejected too.
"""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

__all__ = ["BadFormulaError", "plain_formula"]

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
    sparsefleet.serving.export.size_formula.BadFormulaError: '__import__' is not a function of sizes
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
