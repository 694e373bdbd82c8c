from __future__ import annotations

import math

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.store import Constant, Initializer, Normal, TruncatedNormal, Uniform, Xavier


@pytest.mark.parametrize(
    ("initializer", "wanted"),
    [
        (Constant(0.5), {"kind": "constant", "a": 0.5, "b": 0.0}),
        (Uniform(-1, 2), {"kind": "uniform", "a": -1.0, "b": 2.0}),
        (Normal(0.5, 2), {"kind": "normal", "a": 0.5, "b": 2.0}),
        (TruncatedNormal(0, 1), {"kind": "truncated_normal", "a": 0.0, "b": 1.0}),
    ],
)
def test_native_fields(initializer: Initializer, wanted: dict[str, object]) -> None:
    assert initializer.native_fields(8) == wanted


def test_xavier_uses_the_width_by_default() -> None:
    limit = math.sqrt(6 / 16)
    assert Xavier().native_fields(8) == {"kind": "uniform", "a": -limit, "b": limit}
    assert Xavier(fan_in=2, fan_out=3, uniform=False).native_fields(8) == {
        "kind": "normal",
        "a": 0.0,
        "b": math.sqrt(2 / 5),
    }


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Constant, (math.nan,)),
        (Constant, ("0",)),
        (Uniform, (1.0, 1.0)),
        (Uniform, (1.0, 0.0)),
        (Uniform, (-math.inf, 0.0)),
        (Normal, (0.0, -1.0)),
        (TruncatedNormal, (0.0, math.inf)),
        (Xavier, (0,)),
        (Xavier, (1, 2.5)),
        (Xavier, (1, 1, "no")),
    ],
)
def test_bad_field_is_refused_by_name(
    kind: type[Initializer], arguments: tuple[object, ...]
) -> None:
    with pytest.raises(ConfigError, match=rf"^{kind.__name__}\.\w+ must be"):
        kind(*arguments)
