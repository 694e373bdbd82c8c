"""Formulas of sizes: those that models have keep their meaning, other text is refused."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy import functions

from sparsefleet.serving.export.graph_json import BadFormulaError, plain_formula


@pytest.mark.parametrize(
    "formula",
    [
        "Add(Symbol('s18', positive=True, integer=True), Integer(1))",
        "Mul(Integer(-1), Pow(Symbol('u0', integer=True), Integer(2)), Rational(1, 2))",
        "FloorDiv(Symbol('s0', integer=True), Integer(2))",
        "PythonMod(Symbol('s0'), 7)",
        "Pow(Symbol('s0', positive=True, integer=True), Rational(1, 2))",
        "Max(Float('2.5', precision=53), Symbol('s1', nonnegative=True))",
        "Equality(Symbol('s0', integer=True), Integer(2))",
        "s0 * s1 + 2 * u0 // 3",
        "Add(" + ", ".join(f"Symbol('s{i}', integer=True)" for i in range(300)) + ")",
    ],
)
def test_formulas_of_sizes_keep_their_meaning(formula: str) -> None:
    known = {name: getattr(functions, name) for name in functions.__all__}
    found = sympy.sympify(plain_formula(formula), locals=known)
    assert found == sympy.sympify(formula, locals=known)


@pytest.mark.parametrize(
    "formula",
    [
        "",
        "x",
        "exit",
        "s0[0]",
        "s0.free_symbols",
        "Symbol('s0', commutative=False)",
        "Symbol('s0', integer=eval)",
        "Symbol('os.system')",
        "Symbol('s0').name",
        "Add(*s0)",
        "Add(s0, evaluate=False)",
        "Float('1', precision=1000000000)",
        "Float('nan')",
        "Integer('9')",
        "Rational(1, 0.5)",
        "9**9**9",
        "Pow(Integer(2), Symbol('s0'))",
        "Pow(2, Float('inf'))",
        "LShift(Integer(1), Integer(99999999999))",
        "f(s0)",
        "[s0]",
        "s0 if s1 else s2",
        "s0 < s1",
        "factorial(99999)",
        "1" * 5000,
        "(" * 300 + "s0" + ")" * 300,
        "-" * 3000 + "1",
        "\N{FULLWIDTH LATIN SMALL LETTER S}0",
    ],
)
def test_text_that_is_not_a_formula_of_sizes_is_refused(formula: str) -> None:
    with pytest.raises(BadFormulaError):
        plain_formula(formula)
