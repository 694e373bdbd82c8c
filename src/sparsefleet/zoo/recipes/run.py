"""Runs one recipe in the role of this process; `sparsefleet recipe run` starts it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sparsefleet import fleet
from sparsefleet.zoo.recipes.catalogue import find_recipe
from sparsefleet.zoo.recipes.recipe import Recipe, Settings

__all__ = ["main", "settings_of"]


def settings_of(recipe: Recipe, options: argparse.Namespace) -> Settings:
    """Return the recipe's settings, as overridden on the command line."""
    settings = recipe.settings
    if options.epochs is not None:
        settings = replace(settings, epochs=options.epochs)
    if options.batch_size is not None:
        settings = replace(settings, batch_size=options.batch_size)
    return replace(settings, plain_sgd=settings.plain_sgd or options.plain_sgd)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the recipe named on the command line; the first worker prints and writes the report."""
    parser = argparse.ArgumentParser(description="Runs a recipe as one process of a job.")
    parser.add_argument("name")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--mode")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--plain-sgd", action="store_true")
    parser.add_argument("--by-slot", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    recipe = find_recipe(options.name)
    report = recipe.run(
        options.data,
        mode=options.mode,
        seed=options.seed,
        settings=settings_of(recipe, options),
        by_slot=options.by_slot,
        quiet=options.quiet,
    )
    if fleet.is_first_worker():
        print("\n".join(report.lines()))
        if options.out is not None:
            report.write(options.out)


if __name__ == "__main__":
    main()
