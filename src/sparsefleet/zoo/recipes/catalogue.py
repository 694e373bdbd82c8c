"""All recipes by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from sparsefleet.errors import ConfigError
from sparsefleet.zoo.recipes import (
    ad_clicks,
    book_crossing,
    census_wide_deep,
    movielens_100k,
    movielens_ranking,
    movielens_retrieval,
    next_item,
)
from sparsefleet.zoo.recipes.recipe import Recipe

__all__ = ["RECIPES", "find_recipe"]

RECIPES: dict[str, Callable[[], Recipe]] = {
    "avazu_deepfm": ad_clicks.avazu,
    "books_dcn_v2": book_crossing.dcn_v2,
    "books_deepfm": book_crossing.deepfm,
    "census_wide_deep": census_wide_deep.recipe,
    "criteo_deepfm": ad_clicks.criteo,
    "games_sasrec": next_item.games,
    "movielens_100k_dcn_v2": movielens_100k.dcn_v2,
    "movielens_100k_deepfm": movielens_100k.deepfm,
    "movielens_dcn_v2": movielens_ranking.dcn_v2,
    "movielens_deepfm": movielens_ranking.deepfm,
    "movielens_din": movielens_ranking.din,
    "movielens_sasrec": next_item.movielens,
    "movielens_two_tower": movielens_retrieval.recipe,
    "talkingdata_deepfm": ad_clicks.talkingdata,
}


def find_recipe(name: str) -> Recipe:
    """Return the recipe with this name.

    >>> find_recipe("census_wide_deep").published[0].value
    0.9058
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"no recipe is named {name!r}; the names are {', '.join(RECIPES)}{meant}")
    return RECIPES[name]()
