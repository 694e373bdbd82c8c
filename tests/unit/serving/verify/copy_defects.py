"""Deployed copies of an export that differ from the original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.unit.serving.verify.breaking import (
    Rows,
    change_rows,
    copy_of,
    edit_manifest,
    rows_of,
    take_file,
)
from tests.unit.serving.verify.defect import Defect, Setup
from tests.unit.serving.verify.served_model import days


def _deployed(change: Callable[[Path], Any], **settings: Any) -> Callable[[Path], Setup]:
    """A defective copy is online, with the version of the original."""

    def make(folder: Path) -> Setup:
        copy = copy_of(days().export, folder)
        change(copy)
        return Setup(days().export, (str(copy),), settings)

    return make


def _stale(copy: Path) -> None:
    """Some rows are from the day before."""
    old_keys, old_values = rows_of(days().old_export, "ids")

    def change(keys: np.ndarray, values: np.ndarray) -> Rows:
        some = keys[:7]
        values[:7] = old_values[np.searchsorted(old_keys, some)]
        return keys, values

    change_rows(copy, "ids", change)


def _narrow(keys: np.ndarray, values: np.ndarray) -> Rows:
    return keys, values[:, :-1].copy()


def _without_table(content: dict[str, Any]) -> None:
    del content["tables"][1], content["schema"]["lookups"][1]


def _int32(content: dict[str, Any]) -> None:
    content["schema"]["inputs"][1]["dtype"] = "int32"


def _swapped(content: dict[str, Any]) -> None:
    inputs = content["schema"]["inputs"]
    inputs[1], inputs[2] = inputs[2], inputs[1]


def _unknown_as_initial(content: dict[str, Any]) -> None:
    content["schema"]["lookups"][0]["unknown"] = "initial"


def _older(folder: Path) -> Setup:
    del folder
    return Setup(days().export, (str(days().old_export),), {"previous": days().old_export})


def _meant(folder: Path) -> Setup:
    """The export itself is in int8, without declaring it."""
    copy = copy_of(days().export, folder)
    change_rows(copy, "ids", lambda keys, values: (keys, values), format="int8")
    return Setup(copy, (), {"expect": {"rows": "float32"}})


COPY_DEFECTS = [
    Defect("version of the day before", "settings", "old version", _older),
    Defect("int8 where float32 was meant", "settings", "precision differs", _meant),
    Defect(
        "int8 online, float32 offline",
        "settings",
        "precision differs",
        _deployed(lambda copy: change_rows(copy, "ids", lambda keys, v: (keys, v), format="int8")),
    ),
    Defect(
        "another version, of unknown origin",
        "settings",
        "wrong version",
        _deployed(lambda copy: take_file(copy, "graph", days().old_export)),
    ),
]

SAME_VERSION_DEFECTS = [
    Defect("rows stale", "parameters", "rows stale", _deployed(_stale)),
    Defect(
        "row width differs",
        "parameters",
        "row width differs",
        _deployed(lambda copy: change_rows(copy, "tags", _narrow)),
    ),
    Defect(
        "table missing",
        "parameters",
        "table missing",
        _deployed(lambda copy: edit_manifest(copy, _without_table)),
    ),
    Defect(
        "ids of 32 bits",
        "inputs",
        "schema differs",
        _deployed(lambda copy: edit_manifest(copy, _int32)),
    ),
    Defect(
        "inputs in another order",
        "inputs",
        "slots swapped",
        _deployed(lambda copy: edit_manifest(copy, _swapped)),
    ),
    Defect(
        "unknown ids read otherwise",
        "inputs",
        "schema differs",
        _deployed(lambda copy: edit_manifest(copy, _unknown_as_initial)),
    ),
]
"""A custom store need not have versions: here every copy claims to be the original."""
