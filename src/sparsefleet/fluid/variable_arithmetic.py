"""`+`, `*`, `<` and so on between variables, and with numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparsefleet.fluid import unique_name

if TYPE_CHECKING:
    from sparsefleet.fluid.variable import Variable

__all__ = ["VariableArithmetic"]


class VariableArithmetic:
    """What Python's operators add to the program of a variable.

    With a number, + - * and / of it become one `scale`, as in Fluid.
    """

    def __add__(self, other: Any) -> Variable:
        return self._scaled(other, "elementwise_add", lambda number: (1.0, number))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Variable:
        return self._scaled(other, "elementwise_sub", lambda number: (1.0, -number))

    def __rsub__(self, other: Any) -> Variable:
        return self._scale(-1.0, float(other))

    def __mul__(self, other: Any) -> Variable:
        return self._scaled(other, "elementwise_mul", lambda number: (number, 0.0))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Variable:
        return self._scaled(other, "elementwise_div", lambda number: (1.0 / number, 0.0))

    def __rtruediv__(self, other: Any) -> Variable:
        return self._filled(other)._binary("elementwise_div", self)

    def __pow__(self, other: Any) -> Variable:
        return self._binary("elementwise_pow", other)

    def __mod__(self, other: Any) -> Variable:
        return self._binary("elementwise_mod", other)

    def __floordiv__(self, other: Any) -> Variable:
        return self._binary("elementwise_floordiv", other)

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

    def astype(self, dtype: Any) -> Variable:
        """The same values in another type."""
        from sparsefleet.fluid.dtypes import dtype_name

        return self._unary("cast", {"out_dtype": dtype_name(dtype)})

    def _scaled(self, other: Any, type: str, factors: Any) -> Variable:
        if isinstance(other, (int, float)):
            return self._scale(*factors(other))
        return self._binary(type, other)

    def _scale(self, scale: float, bias: float) -> Variable:
        return self._unary("scale", {"scale": scale, "bias": bias})

    def _unary(self, type: str, attrs: dict[str, Any]) -> Variable:
        out = self._new()
        out.block.append_op(type, {"X": self}, {"Out": out}, attrs)  # type: ignore[union-attr, dict-item]
        return out

    def _binary(self, type: str, other: Any) -> Variable:
        if isinstance(other, (int, float)):
            other = self._filled(other)
        out = self._new()
        out.block.append_op(type, {"X": self, "Y": other}, {"Out": out}, {"axis": -1})  # type: ignore[union-attr, dict-item]
        return out

    def _filled(self, number: float) -> Variable:
        """A number as a variable of this one's type, for operators that take two."""
        out = self._new()
        attrs = {"shape": [1], "dtype": out.dtype, "value": float(number)}
        out.block.append_op("fill_constant", {}, {"Out": out}, attrs)  # type: ignore[union-attr]
        out.stop_gradient = True
        return out

    def _new(self) -> Variable:
        home = self.block  # type: ignore[attr-defined]
        if home is None:
            raise TypeError(f"{self!r} is in no program: declare it by fluid.data")
        block = home.program.current_block()
        made: Variable = block.create_var(unique_name.generate("tmp"), dtype=self.dtype)  # type: ignore[attr-defined]
        return made
