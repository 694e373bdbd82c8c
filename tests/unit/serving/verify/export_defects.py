"""Exports that differ from what was trained: wrongly pruned, mixed, damaged, or outdated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.unit.serving.verify.breaking import (
    Rows,
    change_rows,
    copy_of,
    edit_manifest,
    flip_bit,
    take_file,
)
from tests.unit.serving.verify.defect import Defect, Setup
from tests.unit.serving.verify.served_model import Clicks, batch, days, trainer_of


def _changed(change: Callable[[Path], Any], *online: str) -> Callable[[Path], Setup]:
    """A copy of the export with something wrong; `online`: fields of `days()`."""

    def make(folder: Path) -> Setup:
        copy = copy_of(days().export, folder)
        change(copy)
        return Setup(copy, tuple(str(getattr(days(), name)) for name in online))

    return make


def _manifest(edit: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Setup]:
    return _changed(lambda copy: edit_manifest(copy, edit))


def _rows(table: str, change: Callable[..., Rows]) -> Callable[[Path], Setup]:
    return _changed(lambda copy: change_rows(copy, table, change), "checkpoint")


def _without_last_layer(folder: Path) -> Setup:
    with trainer_of(Clicks()) as trainer:
        trainer.load(days().checkpoint)
        trainer.export(folder / "export", batch(4, seed=1), targets="hidden", onnx=False)
    return Setup(folder / "export", (str(days().checkpoint),))


class _WithoutTags(Clicks):
    def forward(self, counts: Any, ids: Any, tags: Any) -> torch.Tensor:
        del tags
        nothing = counts.new_zeros(counts.shape[0], 3)
        wide = torch.cat([self.ids(ids).flatten(1), nothing, counts], 1)
        return self.score(self.hidden(wide).relu()).squeeze(1)


def _without_table(folder: Path) -> Setup:
    with trainer_of(_WithoutTags()) as trainer:
        trainer.load(days().checkpoint)
        trainer.export(folder / "export", batch(4, seed=1), onnx=False)
    return Setup(folder / "export", (str(days().checkpoint),))


def _other_width(folder: Path) -> Setup:
    with trainer_of(Clicks(hidden=6)) as trainer:
        trainer.fit([batch(16, seed=1)])
        trainer.save(folder / "checkpoint")
    return Setup(days().export, (str(folder / "checkpoint"),))


def _older_than_training(folder: Path) -> Setup:
    del folder
    return Setup(days().old_export, (str(days().checkpoint),))


def _swapped_inputs(content: dict[str, Any]) -> None:
    inputs = content["schema"]["inputs"]
    inputs[0], inputs[1] = inputs[1], inputs[0]


def _undeclared_feed(content: dict[str, Any]) -> None:
    content["schema"]["inputs"].pop(0)


def _other_target(content: dict[str, Any]) -> None:
    content["schema"]["targets"][0]["shape"] = ["batch", 1]


def _other_padding(content: dict[str, Any]) -> None:
    content["schema"]["lookups"][1]["padding_id"] = 7


def _one_bit(keys: np.ndarray, values: np.ndarray) -> Rows:
    values.view(np.uint32)[3, 2] ^= 1
    return keys, values


def _more_rows(keys: np.ndarray, values: np.ndarray) -> Rows:
    more = np.array([10**9, 10**9 + 1], np.uint64)
    return np.concatenate([keys, more]), np.concatenate([values, values[:2]])


def _truncate(copy: Path) -> None:
    path = next(copy.glob("rows-0-*"))
    path.write_bytes(path.read_bytes()[:-64])


def _other_graph(copy: Path) -> None:
    take_file(copy, "graph", days().old_export)
    take_file(copy, "parameters", days().old_export)


EXPORT_DEFECTS = [
    Defect("last layer dropped", "pruning", "trained parameter missing", _without_last_layer),
    Defect("table left out", "pruning", "trained table missing", _without_table),
    Defect("layer of another width", "pruning", "parameter shape differs", _other_width),
    Defect(
        "inputs declared in another order",
        "pruning",
        "feeds and graph differ",
        _manifest(_swapped_inputs),
    ),
    Defect("feed not declared", "pruning", "feeds and graph differ", _manifest(_undeclared_feed)),
    Defect(
        "target of another shape", "pruning", "targets and graph differ", _manifest(_other_target)
    ),
    Defect(
        "padding declared otherwise",
        "pruning",
        "lookups and graph differ",
        _manifest(_other_padding),
    ),
    Defect(
        "export older than training",
        "parameters",
        "dense parameter differs",
        _older_than_training,
    ),
    Defect(
        "rows lost",
        "parameters",
        "rows missing",
        _rows("ids", lambda keys, values: (keys[5:], values[5:])),
    ),
    Defect("one bit of one row", "parameters", "rows differ", _rows("tags", _one_bit)),
    Defect(
        "keys off by one against their rows",
        "parameters",
        "rows differ",
        _rows("ids", lambda keys, values: (keys, np.roll(values, 1, axis=0))),
    ),
    Defect("rows that training has removed", "parameters", "extra rows", _rows("ids", _more_rows)),
    Defect("file of rows cut off", "parameters", "file damaged", _changed(_truncate)),
    Defect(
        "bit of a file flipped",
        "parameters",
        "file damaged",
        _changed(lambda copy: flip_bit(next(copy.glob("rows-1-*")))),
    ),
    Defect(
        "parameters for people of another day",
        "parameters",
        "dense parameter differs",
        _changed(lambda copy: take_file(copy, "parameters", days().old_export)),
    ),
    Defect(
        "graph of another day, sealed again",
        "predictions",
        "golden examples differ",
        _changed(_other_graph),
    ),
]
