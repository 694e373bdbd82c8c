from __future__ import annotations

from sparsefleet.fluid.paddle import compat


def test_lists_are_changed_in_place_if_asked() -> None:
    names = ["a", b"b"]
    assert compat.to_bytes(names, inplace=True) is names
    assert names == [b"a", b"b"]
    assert compat.to_text(names) == ["a", "b"]
    assert names == [b"a", b"b"]


def test_halves_are_rounded_away_from_zero() -> None:
    assert [compat.round(value) for value in (0.5, 1.5, -0.5, 0.0)] == [1.0, 2.0, -1.0, 0.0]


def test_messages_and_division() -> None:
    assert compat.get_exception_message(ValueError("why")) == "why"
    assert compat.floor_division(7, 2) == 3
