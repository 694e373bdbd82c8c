"""All recipes by name."""

from __future__ import annotations

from collections.abc import Callable

from sparsefleet.errors import ConfigError
from sparsefleet.zoo.recipes import (
    book_crossing,
    census_wide_deep,
    movielens_ranking,
    movielens_retrieval,
    next_item,
)
from sparsefleet.zoo.recipes.recipe import Recipe

__all__ = ["RECIPES", "find_recipe"]

RECIPES: dict[str, Callable[[], Recipe]] = {
    "books_deepfm": book_crossing.recipe,
    "census_wide_deep": census_wide_deep.recipe,
    "games_sasrec": next_item.games,
    "movielens_dcn_v2": movielens_ranking.dcn_v2,
    "movielens_deepfm": movielens_ranking.deepfm,
    "movielens_din": movielens_ranking.din,
    "movielens_sasrec": next_item.movielens,
    "movielens_two_tower": movielens_retrieval.recipe,
}


def find_recipe(name: str) -> Recipe:
    """Return a recipe.

    >>> find_recipe("census_wide_deep").published[0].value
    0.9058
    """
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}; the names are {', '.join(RECIPES)}")
    return RECIPES[name]()
