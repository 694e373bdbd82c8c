"""A recipe: data, model and settings that reproduce a result, and how to run it."""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparsefleet import fleet, optim
from sparsefleet.data.features import Categorical, Features
from sparsefleet.errors import ConfigError, InputFileError, InputMissingError
from sparsefleet.field_checks import require_int, require_not_negative, require_positive
from sparsefleet.store import Normal, RowDtype
from sparsefleet.train import SlotReport, Trainer, TrainerConfig
from sparsefleet.zoo.inputs import Tables

__all__ = ["DataFile", "Part", "Prepared", "Published", "Recipe", "Report", "Settings"]

Columns = Mapping[str, Any]
Figures = dict[str, float]
_MAX_UNPACKED_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    """A file that a recipe needs. Nothing is downloaded; the user provides the file."""

    path: str
    """Path below the data directory; the file may also be gzipped, with .gz appended."""
    source: str
    """Where it comes from, and its license terms."""
    md5: str | None
    """MD5 of the uncompressed file; None accepts any content."""

    def read(self, directory: Path) -> bytes:
        """Return the content after checking its MD5."""
        path = directory / self.path
        packed = path.with_name(f"{path.name}.gz")
        if path.is_file():
            content = path.read_bytes()
        elif packed.is_file():
            path, content = packed, _unpacked(packed)
        else:
            raise InputMissingError(
                f"{path}: found neither this file nor {packed.name}; download it from "
                f"{self.source} to this directory, or pass the right directory with --data"
            )
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if self.md5 not in (None, found):
            raise InputFileError(
                f"{path}: the MD5 checksum is {found}, expected {self.md5}; get the version that "
                f"the recipe uses from {self.source}"
            )
        return content

    def lines(self, directory: Path) -> list[str]:
        """Return the lines of a text file after checking its MD5."""
        content = self.read(directory)
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputFileError(
                f"{directory / self.path}: byte {error.start:,} is not UTF-8 text; get the file "
                f"from {self.source}"
            ) from error
        # Not splitlines(), which also splits at form feeds and other characters inside fields.
        return text.removesuffix("\n").replace("\r\n", "\n").split("\n") if text else []


def _unpacked(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            content = file.read(_MAX_UNPACKED_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputFileError(
            f"{path}: not a complete gzip file ({error}); copy it again, or put the unpacked file "
            "in the same directory"
        ) from error
    if len(content) > _MAX_UNPACKED_BYTES:
        raise InputFileError(
            f"{path}: unpacks to more than {_MAX_UNPACKED_BYTES:,} bytes, which no recipe needs; "
            "put the unpacked file in the same directory"
        )
    return content


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A published result to compare with."""

    metric: str
    value: float
    where: str
    """Model, data, protocol and source, noting where they differ from the recipe's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Sizes and learning rates of a training run."""

    batch_size: int = 500
    epochs: int = 3
    lr: float = 0.001
    """Learning rate of Adam, for the layers."""
    table_lr: float = 0.05
    """Learning rate of Adagrad, for the rows."""
    table_std: float = 0.01
    """Standard deviation of the initial values of rows."""
    row_dtype: RowDtype = "float32"
    """How the tables store their rows."""
    plain_sgd: bool = False
    """Use plain SGD, as required by geo mode, for layers and rows, with the rates below."""
    plain_lr: float = 0.1
    plain_table_lr: float = 1.0

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs"):
            require_int(self, name, 1, 2**31 - 1)
        for name in ("lr", "table_lr", "plain_lr", "plain_table_lr"):
            require_positive(self, name)
        require_not_negative(self, "table_std")

    def tables(self, seed: int) -> Tables:
        """Return the settings for the model's tables."""
        rows: optim.Optimizer = optim.Adagrad(lr=self.table_lr)
        if self.plain_sgd:
            rows = optim.SGD(lr=self.plain_table_lr)
        return Tables(
            optimizer=rows,
            initializer=Normal(std=self.table_std),
            seed=seed,
            row_dtype=self.row_dtype,
        )

    def layers(self) -> optim.Optimizer:
        """Return the optimizer for the layers.

        Not one of torch's, whose constructors import torch's compiler: 1.6 s in each process.
        """
        return optim.SGD(lr=self.plain_lr) if self.plain_sgd else optim.Adam(lr=self.lr)


@dataclass(frozen=True, slots=True)
class Part:
    """Examples for training or testing."""

    features: Features
    columns: Columns

    def __len__(self) -> int:
        assert self.features.label is not None
        return len(self.columns[self.features.label.name])


@dataclass(frozen=True, slots=True)
class Prepared:
    """The data of a recipe, ready for training."""

    train: Part
    test: Part
    score: Callable[[NDArray[np.float32], Columns], Figures]
    """Computes the figures from the predictions for `test`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The results of a recipe."""

    recipe: str
    mode: str
    servers: int
    workers: int
    seed: int
    settings: dict[str, Any]
    examples: int
    seconds: float
    figures: Figures
    published: list[dict[str, Any]]
    versions: dict[str, str] = field(default_factory=dict)
    slots: SlotReport | None = None
    """What each input contributes, if it was asked for."""

    def lines(self) -> list[str]:
        """Return the report as Markdown, with our results next to the published ones."""
        found = [
            f"# {self.recipe}",
            "",
            f"Mode {self.mode}, {self.servers} servers, {self.workers} workers, seed {self.seed}; "
            f"{self.examples:,} examples in {self.seconds:.1f} s. "
            f"Settings: {', '.join(f'{name} {value}' for name, value in self.settings.items())}.",
            "",
            "| metric | ours | published | where |",
            "|---|---|---|---|",
        ]
        for name, value in self.figures.items():
            known = [one for one in self.published if one["metric"] == name]
            for one in known or [{"value": None, "where": ""}]:
                shown = "" if one["value"] is None else f"{one['value']:.4f}"
                found.append(f"| {name} | {value:.4f} | {shown} | {one['where']} |")
        return found

    def write(self, directory: Path) -> None:
        """Write report.json, report.md and, with ``slots``, report.html."""
        directory.mkdir(parents=True, exist_ok=True)
        found = asdict(replace(self, slots=None))
        del found["slots"]
        (directory / "report.json").write_text(json.dumps(found, indent=1) + "\n")
        (directory / "report.md").write_text("\n".join(self.lines()) + "\n")
        if self.slots is not None:
            title = f"{self.recipe}, mode {self.mode}, seed {self.seed}"
            self.slots.write_html(directory / "report.html", title=title)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything that determines a result, in one place."""

    name: str
    title: str
    files: tuple[DataFile, ...]
    protocol: str
    """How the data is split and what is measured."""
    prepare: Callable[[Path, int], Prepared]
    """Reads the checked files of a directory; the seed determines the random choices."""
    model: Callable[[Tables], nn.Module]
    loss: Any
    settings: Settings
    published: tuple[Published, ...] = ()

    def check(self, directory: Path, seed: int = 0) -> None:
        """Raise an error if the seed is negative, or if a file is missing or wrong."""
        if seed < 0:
            raise ConfigError(f"recipe {self.name!r}: seed must be an int >= 0, got {seed}")
        if not directory.is_dir():
            raise ConfigError(f"{directory}: no such directory; pass the right one with --data")
        for file in self.files:
            file.read(directory)

    def run(
        self,
        directory: Path,
        *,
        mode: str | None = None,
        seed: int = 0,
        settings: Settings | None = None,
        by_slot: bool = False,
        quiet: bool = False,
    ) -> Report:
        """Train and evaluate in the fleet of this process; must be called by all workers.

        by_slot: also evaluate what each input contributes, see `Trainer.evaluate`.
        """
        self.check(directory, seed)
        chosen = settings or self.settings
        if mode == "geo" and not chosen.plain_sgd:
            chosen = replace(chosen, plain_sgd=True)
        torch.manual_seed(seed)
        model = self.model(chosen.tables(seed))
        trainer = Trainer(
            model,
            self.loss,
            chosen.layers(),
            mode=mode,
            config=TrainerConfig(quiet=quiet),
        )
        begin = time.monotonic()
        with trainer:
            prepared = self.prepare(directory, seed)
            figures, examples = self._train(trainer, prepared, chosen, seed)
            slots = _by_slot(trainer, prepared.test) if by_slot else None
        return Report(
            recipe=self.name,
            mode=mode or "default",
            servers=fleet.server_num(),
            workers=fleet.worker_num(),
            seed=seed,
            settings=asdict(chosen),
            examples=examples,
            seconds=time.monotonic() - begin,
            figures=figures,
            published=[asdict(one) for one in self.published],
            versions={"python": platform.python_version(), "torch": torch.__version__},
            slots=slots,
        )

    def _train(
        self, trainer: Trainer, prepared: Prepared, settings: Settings, seed: int
    ) -> tuple[Figures, int]:
        part = prepared.train
        data = part.features.memory(
            part.columns,
            settings.batch_size,
            worker_index=fleet.worker_index(),
            worker_num=fleet.worker_num(),
        )
        examples = 0
        for epoch in range(settings.epochs):
            data.local_shuffle(seed=seed * 1000 + epoch)
            examples += trainer.fit(data).examples
        trainer.distributed.settle()
        test = prepared.test.features.memory(prepared.test.columns, 2000)
        predictions = trainer.predict(test).numpy()
        return prepared.score(predictions, prepared.test.columns), examples * fleet.worker_num()


def _by_slot(trainer: Trainer, test: Part) -> SlotReport:
    part = test.features.memory(
        test.columns, 2000, worker_index=fleet.worker_index(), worker_num=fleet.worker_num()
    )
    return trainer.evaluate(part, by="slot").named(_texts_of_ids(test))


def _texts_of_ids(part: Part) -> dict[str, dict[str, str]]:
    """Return the texts that became ids, by feature and id; only of features with one id."""
    found = {}
    for feature in part.features.of(Categorical):
        column = np.asarray(part.columns[feature.name])
        if column.ndim == 1 and column.dtype.kind in "UO":
            texts = np.unique(column.astype(str))
            (inputs,) = Features(feature).memory({feature.name: texts}, len(texts))
            ids = inputs[feature.name].tolist()
            found[feature.name] = dict(zip(map(str, ids), texts.tolist(), strict=True))
    return found
