"""A recipe in plain torch: dense tables, torch's optimizers, a loop. For bench/quality.py.

    python bench/quality_torch.py census_wide_deep --data ../shared/data --out build/torch

The model is the recipe's; each of its tables becomes an nn.Embedding with a row for every id of
the data, which starts with values of the same distribution. The engine, the stores and their
optimizers are not used.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsefleet.data.features import IdFeature
from sparsefleet.nn import SparseEmbedding
from sparsefleet.train.scoring import predictions_for
from sparsefleet.zoo.recipes import Report, find_recipe
from sparsefleet.zoo.recipes.recipe import Part, Prepared


class DenseTable(nn.Module):
    """An embedding of the ids that occur in training; any other id reads as zeros."""

    def __init__(self, ids: np.ndarray, dim: int, std: float) -> None:
        super().__init__()
        self.ids = torch.from_numpy(np.unique(ids))
        self.rows = nn.Embedding(len(self.ids) + 1, dim)
        nn.init.normal_(self.rows.weight, std=std)
        self.missing = len(self.ids)

    def forward(self, ids: Tensor) -> Tensor:
        place = torch.searchsorted(self.ids, ids).clamp(max=self.missing - 1)
        known = self.ids[place] == ids
        return self.rows(torch.where(known, place, self.missing)) * known.unsqueeze(-1)


def batches(part: Part, size: int, seed: int | None) -> Iterator[tuple[dict[str, Any], Tensor]]:
    data = part.features.memory(part.columns, size)
    if seed is not None:
        data.local_shuffle(seed=seed)
    for inputs, labels in data:
        yield (
            {
                name: tuple(map(torch.from_numpy, column))
                if isinstance(column, tuple)
                else torch.from_numpy(column)
                for name, column in inputs.items()
            },
            torch.from_numpy(labels),
        )


def ids_by_table(part: Part) -> dict[str, np.ndarray]:
    """Return all ids that training looks up, by table, without suffixes."""
    found: dict[str, list[np.ndarray]] = {}
    for inputs, _ in batches(part, 4096, None):
        for feature in part.features.of(IdFeature):
            column = inputs[feature.name]
            values = column[0] if isinstance(column, tuple) else column
            found.setdefault(feature.table_name, []).append(values.numpy().reshape(-1))
    return {table: np.unique(np.concatenate(parts)) for table, parts in found.items()}


def make_dense(model: nn.Module, ids: dict[str, np.ndarray], std: float) -> list[nn.Parameter]:
    """Replace all tables in place; return their weights."""
    weights = []
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, SparseEmbedding):
                starts_at_zero = child.name.endswith(".linear")
                table = DenseTable(
                    ids[child.name.split(".")[0]], child.dim, 0.0 if starts_at_zero else std
                )
                setattr(module, name, table) if not isinstance(module, nn.ModuleDict) else (
                    module.__setitem__(name, table)
                )
                weights.append(table.rows.weight)
    return weights


def train(options: argparse.Namespace, prepared: Prepared) -> tuple[dict[str, float], int]:
    recipe = find_recipe(options.name)
    settings = recipe.settings
    if options.epochs is not None:
        settings = replace(settings, epochs=options.epochs)
    torch.manual_seed(options.seed)
    model = recipe.model(settings.tables(options.seed))
    tables = make_dense(model, ids_by_table(prepared.train), settings.table_std)
    is_table = {id(weight) for weight in tables}
    layers = [one for one in model.parameters() if id(one) not in is_table]
    optimizers = [
        torch.optim.Adam(layers, lr=settings.lr),
        torch.optim.Adagrad(tables, lr=settings.table_lr),
    ]
    examples = 0
    for epoch in range(settings.epochs):
        seed = options.seed * 1000 + epoch
        for inputs, labels in batches(prepared.train, settings.batch_size, seed):
            loss = recipe.loss(model(**inputs), labels)
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            examples += len(labels)
    model.eval()
    predict = predictions_for(recipe.loss)
    with torch.no_grad():
        found = [predict(model(**inputs)) for inputs, _ in batches(prepared.test, 2000, None)]
    return prepared.score(torch.cat(found).numpy(), prepared.test.columns), examples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    recipe = find_recipe(options.name)
    recipe.check(options.data)
    begin = time.monotonic()
    figures, examples = train(options, recipe.prepare(options.data, options.seed))
    report = Report(
        recipe=recipe.name,
        mode="plain torch",
        servers=0,
        workers=1,
        seed=options.seed,
        settings=asdict(recipe.settings),
        examples=examples,
        seconds=time.monotonic() - begin,
        figures=figures,
        published=[asdict(one) for one in recipe.published],
    )
    report.write(options.out)
    if not options.quiet:
        print("\n".join(report.lines()))


if __name__ == "__main__":
    main()
