"""Python operators on variables: `+`, `*`, `<`, `[...]` and so on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from sparsefleet.fluid.framework import unique_name
from sparsefleet.fluid.framework.call_site import ProgramError, call_site

if TYPE_CHECKING:
    from sparsefleet.fluid.framework.block import Block
    from sparsefleet.fluid.framework.variable import Variable

__all__ = ["VariableArithmetic"]

_Number = (int, float)


class VariableArithmetic:
    """Python operators, each of which adds an operator to the variable's program.

    As in Fluid, arithmetic with a number becomes one `scale`. `==` also adds an operator, so
    compare variables with `is` or by name.
    """

    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Variable:
        return self._scaled(other, "elementwise_add", lambda number: (1.0, number))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Variable:
        return self._scaled(other, "elementwise_sub", lambda number: (1.0, -number))

    def __rsub__(self, other: Any) -> Variable:
        return self._scale(-1.0, self._number(other))

    def __mul__(self, other: Any) -> Variable:
        return self._scaled(other, "elementwise_mul", lambda number: (number, 0.0))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Variable:
        if self._is_whole():  # 1 / other is not in the table
            return self._binary("elementwise_div", other)
        return self._scaled(other, "elementwise_div", lambda number: (1.0 / number, 0.0))

    def __rtruediv__(self, other: Any) -> Variable:
        return self._filled(other)._binary("elementwise_div", self)

    def __pow__(self, other: Any) -> Variable:
        return self._binary("elementwise_pow", other)

    def __rpow__(self, other: Any) -> Variable:
        return self._filled(other)._binary("elementwise_pow", self)

    def __mod__(self, other: Any) -> Variable:
        return self._binary("elementwise_mod", other)

    def __floordiv__(self, other: Any) -> Variable:
        return self._binary("elementwise_floordiv", other)

    def __eq__(self, other: object) -> Any:
        return self._compared("equal", other)

    def __ne__(self, other: object) -> Any:
        return self._compared("not_equal", other)

    def __lt__(self, other: Any) -> Variable:
        return self._binary("less_than", other)

    def __le__(self, other: Any) -> Variable:
        return self._binary("less_equal", other)

    def __gt__(self, other: Any) -> Variable:
        return self._binary("greater_than", other)

    def __ge__(self, other: Any) -> Variable:
        return self._binary("greater_equal", other)

    def __neg__(self) -> Variable:
        return self._scale(-1.0, 0.0)

    def __getitem__(self, item: Any) -> Variable:
        """Slice or index the first axes. Axes indexed by a number are dropped."""
        from sparsefleet.fluid.operators.indexing import take_item

        self._block()
        return take_item(self, item)  # type: ignore[arg-type]

    def __iter__(self) -> NoReturn:
        # For `for` and `in`, Python would try x[0], x[1], ... and add operators forever.
        raise TypeError(f"{self!r} cannot be iterated; split it with fluid.layers.unstack")

    def astype(self, dtype: Any) -> Variable:
        """Return the values converted to a different type."""
        from sparsefleet.fluid.framework.dtypes import dtype_name

        return self._unary("cast", {"out_dtype": dtype_name(dtype)})

    def _scaled(self, other: Any, type: str, factors: Any) -> Variable:
        if isinstance(other, _Number):
            return self._scale(*factors(self._number(other)))
        return self._binary(type, other)

    def _number(self, other: Any) -> float:
        if self._is_whole() and other != int(other):
            raise ProgramError.at(
                call_site(), "arithmetic", f"{self!r} holds integers, got {other}; cast it"
            )
        return float(other)

    def _is_whole(self) -> bool:
        return self.dtype in ("int32", "int64", "uint8", "int8", "int16")  # type: ignore[attr-defined]

    def _scale(self, scale: float, bias: float) -> Variable:
        return self._unary("scale", {"scale": scale, "bias": bias})

    def _unary(self, type: str, attrs: dict[str, Any]) -> Variable:
        out = self._new()
        self._block().append_op(type, {"X": self}, {"Out": out}, attrs)  # type: ignore[dict-item]
        return out

    def _compared(self, type: str, other: object) -> Any:
        if isinstance(other, (VariableArithmetic, *_Number)):
            return self._binary(type, other)
        return NotImplemented

    def _binary(self, type: str, other: Any) -> Variable:
        """Add a binary operator, casting `other` to this variable's type and aligning axes as in
        Fluid 1.8.5.
        """
        other = other if isinstance(other, VariableArithmetic) else self._filled(other)
        if other.dtype != self.dtype:  # type: ignore[attr-defined]
            other = other.astype(self.dtype)  # type: ignore[attr-defined]
        axis = 0 if other.shape and other.shape[0] == -1 else -1
        out = self._new()
        self._block().append_op(type, {"X": self, "Y": other}, {"Out": out}, {"axis": axis})  # type: ignore[dict-item]
        out.stop_gradient = out.dtype == "bool"
        return out

    def _filled(self, number: Any) -> Variable:
        """Return a number as a variable of this type, for operators that take two variables."""
        if not isinstance(number, _Number):
            raise TypeError(
                f"{call_site()}: {self!r} cannot be combined with {number!r}, expected a Variable "
                "or a number; turn an array into a variable with fluid.layers.assign"
            )
        out = self._new()
        attrs = {"shape": [1], "dtype": out.dtype, "value": float(number)}
        self._block().append_op("fill_constant", {}, {"Out": out}, attrs)
        out.stop_gradient = True
        return out

    def _new(self) -> Variable:
        return self._block().create_var(unique_name.generate("tmp"), dtype=self.dtype)  # type: ignore[attr-defined]

    def _block(self) -> Block:
        block: Block | None = self.block  # type: ignore[attr-defined]
        if block is None:
            raise TypeError(f"{self!r} is not part of a program; declare it with fluid.data")
        return block.program.current_block()
