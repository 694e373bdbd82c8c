"""Models take any feature description that makes sense, and name what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sparsefleet import zoo
from sparsefleet.data.features import Categorical, Features, MultiValued, Numeric, Sequence
from sparsefleet.errors import ConfigError, ShapeError

FEATURES = Features(
    Numeric("age"),
    Categorical("user"),
    Categorical("pair", columns=("C1", "C2")),
    Categorical("movie"),
    MultiValued("tags"),
    Sequence("seen", table="movie", max_length=5),
    Sequence("short", table="movie", max_length=4),
    Sequence("visited", max_length=5),
)


def sasrec(features: Features, **settings: Any) -> nn.Module:
    return zoo.SASRec(features, history="seen", candidate="movie", **settings)


@pytest.mark.parametrize("model", [zoo.DIN, zoo.DIEN, zoo.SASRec])
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("watched", "movie"), "no feature is named 'watched'; the names are age, user"),
        (("seen", "film"), "no feature is named 'film'"),
        (("tags", "movie"), "history='tags' must be a Sequence, .* is a MultiValued"),
        (("seen", "tags"), "candidate='tags' must be a Categorical, .* is a MultiValued"),
        (("seen", "age"), "candidate='age' must be a Categorical, .* is a Numeric"),
        (("seen", "seen"), "candidate='seen' must be a Categorical, .* is a Sequence"),
    ],
    ids=str,
)
def test_a_history_and_a_candidate_of_another_kind_are_named(
    model: type[nn.Module], names: tuple[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        model(FEATURES, history=names[0], candidate=names[1])


@pytest.mark.parametrize("model", [zoo.DIN, zoo.DIEN])
def test_a_candidate_has_one_id_per_example(model: type[nn.Module]) -> None:
    with pytest.raises(ConfigError, match=r"candidate='pair' must have one id .*\('C1', 'C2'\)"):
        model(FEATURES, history="seen", candidate="pair")


@pytest.mark.parametrize(
    "build",
    [
        lambda name: zoo.DIEN(FEATURES, history="seen", candidate="movie", negatives=name),
        lambda name: sasrec(FEATURES, chosen=name, refused="seen"),
        lambda name: sasrec(FEATURES, chosen="seen", refused=name),
    ],
)
def test_sequences_beside_a_history_have_its_table_and_length(
    build: Callable[[str], nn.Module],
) -> None:
    with pytest.raises(ConfigError, match="max_length 4, but history='seen' has 'movie' and 5"):
        build("short")
    with pytest.raises(ConfigError, match="has the table 'visited'"):
        build("visited")
    with pytest.raises(ConfigError, match="='user' must be a Sequence"):
        build("user")
    with pytest.raises(ConfigError, match="no feature is named 'nothing'"):
        build("nothing")


def test_a_negative_belongs_to_each_item_of_a_history() -> None:
    others = (Sequence(name, table="movie", max_length=5) for name in ("next", "other"))
    features = Features(*FEATURES.only("movie", "seen"), *others)
    items, starts = torch.tensor([1, 2, 3]), torch.tensor([0, 1])
    batch = {"movie": torch.tensor([1, 2]), "seen": (items, starts), "next": (items, starts)}
    wrong = {**batch, "other": (items, torch.tensor([0, 2]))}
    message = "input 'other' has 2 items in example 0, but the history has 1"
    both = sasrec(features, chosen="next", refused="other")
    dien = zoo.DIEN(features.without("next"), history="seen", candidate="movie", negatives="other")
    for model in (both, dien):
        model(**{**batch, "other": (items, starts)})
        with pytest.raises(ShapeError, match=message):
            model(**wrong)
    with pytest.raises(ConfigError, match="both chosen= and refused=, got 'next' and None"):
        sasrec(features, chosen="next")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_frequency": "log_shair"}, "no feature is named 'log_shair'"),
        ({"log_frequency": "user"}, "log_frequency='user' must be a Numeric"),
        ({"item": "pair"}, "='pair' must have one id per example"),
        ({"item": "seen"}, "='seen' must be a Categorical"),
        ({"item": "film"}, "no feature is named 'film'"),
    ],
    ids=str,
)
def test_items_and_frequencies_of_retrieval_models_are_checked(
    changes: dict[str, str], message: str
) -> None:
    frequency, item = changes.get("log_frequency"), changes.get("item", "movie")
    with pytest.raises(ConfigError, match=message):
        zoo.TwoTower(FEATURES, user=["user"], item=["movie"], item_id=item, log_frequency=frequency)
    with pytest.raises(ConfigError, match=message):
        zoo.YouTubeDNN(FEATURES, user=["user"], item=item, log_frequency=frequency)


@pytest.mark.parametrize("model", ["CtrDnn", "DIN"])
@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (([1, 2, 3], [0, 5]), "table 'movie': offsets reach 5, but there are only 3 ids"),
        (([1, 2, 3], [2, 1]), "table 'movie': offsets must start at 0, got 2"),
        (([1, 2, 3], [0, -1]), "table 'movie': offsets must not decrease"),
        (([1, 2, 3],), r"input 'seen' must be a pair \(values .*, got a tuple"),
    ],
    ids=str,
)
def test_offsets_beyond_the_ids_are_named(
    model: str, seen: tuple[list[int], ...], message: str
) -> None:
    features = FEATURES.only("movie", "seen")
    made = (
        zoo.CtrDnn(features, hidden=(4,))
        if model == "CtrDnn"
        else zoo.DIN(features, history="seen", candidate="movie")
    )
    with pytest.raises(ShapeError, match=message):
        made(movie=torch.tensor([1, 2]), seen=tuple(map(torch.tensor, seen)))


def test_weights_and_frequencies_in_a_column_are_not_broadcast() -> None:
    rows, ids, ones = torch.eye(3), torch.tensor([5, 6, 7]), torch.ones(3)
    loss = zoo.InBatchSoftmax(1.0)
    assert loss(zoo.Towers(rows, rows, ids, ones), ones).dim() == 0
    with pytest.raises(ShapeError, match=r"labels must have shape \[3\], .* got \[3, 1\]"):
        loss(zoo.Towers(rows, rows, ids, None), ones.view(3, 1))
    with pytest.raises(ShapeError, match=r"log_frequency must have shape \[3\], .*got \[3, 1\]"):
        loss(zoo.Towers(rows, rows, ids, ones.view(3, 1)), ones)


def test_linear_terms_need_no_ids() -> None:
    numbers = {"age": torch.tensor([1.0, 2.0]), "user": torch.tensor([7, 8])}
    features = FEATURES.only("age", "user")
    assert zoo.WideDeep(features, wide=["age"])(**numbers).shape == (2,)
    assert zoo.WideDeep(features, wide=["user"])(**numbers).shape == (2,)
    assert zoo.WideDeep(features.only("age"))(age=numbers["age"]).shape == (2,)


def test_tables_whose_names_differ_in_a_dot_are_two_tables() -> None:
    features = Features(Categorical("ad.id", dim=2), Categorical("ad_id", dim=3))
    rows = zoo.FeatureRows(features)
    assert sorted(table.name for table in rows.tables.values()) == ["ad.id", "ad_id"]
    batch = {"ad.id": torch.tensor([1]), "ad_id": torch.tensor([1])}
    assert rows.flat(batch).shape == (1, 5)


@pytest.mark.parametrize("number", [0, -1, 1.5, "two"])
def test_a_number_of_logits_is_positive(number: object) -> None:
    with pytest.raises(ConfigError, match=f"num_logits must be an int >= 1, got {number!r}"):
        zoo.CtrDnn(FEATURES, num_logits=number)


SMALL = FEATURES.only("age", "user", "movie", "seen")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: zoo.MMoE(SMALL, tasks=0), "MMoE: tasks must be an int >= 1, got 0"),
        (lambda: zoo.MMoE(SMALL, tasks=2, experts=True), "experts must be an int >= 1, got True"),
        (lambda: zoo.MMoE(SMALL, tasks=2, expert=()), r"expert needs at least one .*, got \(\)"),
        (lambda: zoo.PLE(SMALL, tasks=2, layers=0), "PLE: layers must be an int >= 1, got 0"),
        (lambda: zoo.PLE(SMALL, tasks=2, expert=()), "PLE: expert needs at least one"),
        (lambda: zoo.XDeepFM(SMALL, maps=()), "XDeepFM: maps needs at least one layer width"),
        (lambda: zoo.XDeepFM(SMALL, maps=(4, 0)), "XDeepFM: maps must be an int >= 1, got 0"),
        (lambda: zoo.DCNv2(SMALL, cross_layers=-1), "layers must be an int >= 0, got -1"),
        (lambda: zoo.DCNv2(SMALL, rank=0), "rank must be an int >= 1, got 0"),
        (lambda: zoo.AutoInt(SMALL, heads=0), "AutoInt: heads must be an int >= 1, got 0"),
        (lambda: zoo.AutoInt(SMALL, layers=-1), "AutoInt: layers must be an int >= 0, got -1"),
        (lambda: sasrec(SMALL, heads=0), "SASRec: heads must be an int >= 1, got 0"),
        (lambda: zoo.YouTubeDNN(SMALL, user=["seen"], item="movie", dim=0), "widths .* and 0"),
        (lambda: zoo.CtrDnn(SMALL, hidden=64), "widths must be a list of ints >= 1, got 64"),
        (lambda: zoo.CtrDnn(SMALL, hidden="64"), "widths must be a list of ints >= 1, got '64'"),
    ],
)
def test_sizes_that_make_no_model_are_named(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()
