"""Formats of text files, each with the columns it gives. Letters: B records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sparsefleet import _core
from sparsefleet.data.field import Field
from sparsefleet.data.slot import Slot
from sparsefleet.data.text_format import TextFormat
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_bool


class MultiSlot(TextFormat):
    """MultiSlot text: each line has all slots in order, each as its count and its values.

    A line for the slots of the example: ``2 0.5 0.25 3 17 18 99 1 1``.

    >>> format = MultiSlot(Slot("dense", "float", (2,)), Slot("ads"), Slot("click", "float", ()))
    >>> [slot.name for slot in format.columns]
    ['dense', 'ads', 'click']
    """

    def __init__(self, *slots: Slot) -> None:
        for slot in slots:
            if not isinstance(slot, Slot):
                raise ConfigError(f"MultiSlot takes slots, got a {type(slot).__name__}")
            if isinstance(slot, Field):
                raise ConfigError(
                    f"MultiSlot text has no columns: give a Slot for '{slot.name}', not a Field"
                )
        self._columns: tuple[Slot, ...] = slots
        self._native = _core.multi_slot_format(
            [(slot.name, slot.dtype, slot.width) for slot in slots]
        )

    @property
    def columns(self) -> tuple[Slot, ...]:
        return self._columns

    def make_native(self) -> _core.RecordFormat:
        return self._native


@dataclass(frozen=True, kw_only=True, slots=True)
class CriteoTsv(TextFormat):
    """Criteo's click logs: label, 13 counts, 26 categories, with tabs between; empty is missing.

    Columns: "label" float32[B], "counts" float32[B, 13], "categories" int64[B, 26].

    >>> [slot.name for slot in CriteoTsv(has_label=False).columns]
    ['counts', 'categories']
    """

    categories: Literal["hash", "hex"] = "hash"
    """"hash": the id of the text t in category c (from 0) is ``hash64(t, seed=c)``, also of a
    missing one, whose text is empty; any text will do. "hex": the number that the text is, up to
    8 hexadecimal digits, and -1 for a missing one; equal texts of two categories are equal."""

    counts: Literal["log", "plain"] = "log"
    """"log": a count x becomes log(1 + x), and 0 if it is negative. "plain": as it is."""

    missing_count: float = 0.0
    """What stands for a missing count, whichever the transform. May be NaN."""

    has_label: bool = True
    """False: lines begin with the first count."""

    def __post_init__(self) -> None:
        require(self.categories in ("hash", "hex"), self, "categories", "'hash' or 'hex'")
        require(self.counts in ("log", "plain"), self, "counts", "'log' or 'plain'")
        value = self.missing_count
        holds = isinstance(value, (int, float)) and not math.isinf(value)
        require(holds, self, "missing_count", "a number")
        require_bool(self, "has_label")

    @property
    def columns(self) -> tuple[Slot, ...]:
        label = (Slot("label", "float", ()),) if self.has_label else ()
        return (*label, Slot("counts", "float", (13,)), Slot("categories", "uint64", (26,)))

    def make_native(self) -> _core.RecordFormat:
        return _core.criteo_format(
            self.categories == "hash", self.counts == "log", self.missing_count, self.has_label
        )
