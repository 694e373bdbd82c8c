"""Recipes: data, model and settings that reproduce a result; see docs/recipes.md."""

from sparsefleet.zoo.recipes.catalogue import RECIPES, find_recipe
from sparsefleet.zoo.recipes.recipe import DataFile, Part, Prepared, Recipe, Report, Settings

__all__ = [
    "DataFile",
    "Part",
    "Prepared",
    "RECIPES",
    "Recipe",
    "Report",
    "Settings",
    "find_recipe",
]
