"""Which gradients travel together."""

from __future__ import annotations

import pytest
import torch

from sparsefleet.collective import CollectiveStrategy
from sparsefleet.collective.buckets import Bucket, layer_by_prefix, plan_buckets

KB = 2**10


def layers(*kilobytes: int) -> list[tuple[str, torch.Tensor]]:
    """Layers with a weight of this many KB and a bias of 4 bytes."""
    named = []
    for layer, size in enumerate(kilobytes):
        named.append((f"fc_{layer}.w_0", torch.zeros(size * KB // 4)))
        named.append((f"fc_{layer}.b_0", torch.zeros(1)))
    return named


def test_a_layer_is_a_bucket_when_no_size_is_set() -> None:
    strategy = CollectiveStrategy(fuse_memory_mb=-1, fuse_groups=1)
    assert plan_buckets(layers(1, 1, 1), strategy) == [[5, 4], [3, 2], [1, 0]]


def test_whole_layers_are_gathered_until_the_bytes_are_reached() -> None:
    strategy = CollectiveStrategy(fuse_memory_mb=5 / KB, fuse_groups=1)
    assert plan_buckets(layers(4, 4, 4, 8, 1), strategy) == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]


def test_whole_layers_are_gathered_until_there_are_more_gradients_than_asked() -> None:
    strategy = CollectiveStrategy(fuse_memory_mb=-1, fuse_groups=2)
    assert plan_buckets(layers(1, 1, 1, 1, 1), strategy) == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]


def test_either_limit_closes_a_bucket() -> None:
    strategy = CollectiveStrategy(fuse_memory_mb=8 / KB, fuse_groups=3)
    plan = plan_buckets(layers(1, 1, 1, 9), strategy)
    assert plan == [[7, 6], [5, 4, 3, 2], [1, 0]]


def test_all_gradients_are_in_one_bucket_when_groups_are_unlimited() -> None:
    strategy = CollectiveStrategy(fuse_memory_mb=-1, fuse_groups=-1)
    assert plan_buckets(layers(1, 1), strategy) == [[3, 2, 1, 0]]


def test_every_gradient_is_alone_without_fusion() -> None:
    strategy = CollectiveStrategy(fuse_all_reduce=False, fuse_groups=-1)
    assert plan_buckets(layers(1, 1), strategy) == [[3], [2], [1], [0]]


def test_limits_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_fuse_parameter_memory_size", "0.005")
    assert len(plan_buckets(layers(4, 4, 4, 4), CollectiveStrategy())) == 2
    monkeypatch.setenv("FLAGS_fuse_parameter_memory_size", "-1")
    monkeypatch.setenv("FLAGS_fuse_parameter_groups_size", "5")
    assert len(plan_buckets(layers(4, 4, 4, 4), CollectiveStrategy())) == 2
    assert len(plan_buckets(layers(4, 4, 4, 4), CollectiveStrategy(fuse_groups=1))) == 4


def test_buckets_are_split_by_dtype() -> None:
    named = [("a.w", torch.zeros(1)), ("a.h", torch.zeros(1, dtype=torch.bfloat16))]
    assert plan_buckets(named, CollectiveStrategy()) == [[1], [0]]


def test_a_layer_of_fluid_ends_at_the_first_dot() -> None:
    named = [(name, torch.zeros(1)) for name in ("bert.0.w", "bert.1.w", "head")]
    by_module = plan_buckets(named, CollectiveStrategy(fuse_groups=1, fuse_memory_mb=-1))
    assert by_module == [[2], [1], [0]]
    strategy = CollectiveStrategy(fuse_groups=1, fuse_memory_mb=-1)
    assert plan_buckets(named, strategy, layer_by_prefix) == [[2], [1, 0]]


def test_views_of_a_bucket_lie_as_their_parameters_do() -> None:
    image = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    bucket = Bucket([1, 0], [("a", torch.zeros(3)), ("b", image)], num_notes=2, multiple_of=4)
    assert len(bucket.buffer) == 128
    assert [view.stride() for view in bucket.views] == [image.stride(), (1,)]
    bucket.views[0].fill_(1)
    bucket.views[1].fill_(2)
    assert bucket.gradients.sum() == 120 + 6
    assert bucket.notes.tolist() == [0, 0]


def test_a_default_holds_only_where_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(**fields: float) -> int:
        strategy = CollectiveStrategy(**fields)  # type: ignore[arg-type]
        return len(plan_buckets(layers(4, 4, 4, 4), strategy, default_bytes=8 * KB))

    assert (count(), count(fuse_memory_mb=-1), count(fuse_groups=1)) == (2, 4, 4)
    monkeypatch.setenv("FLAGS_fuse_parameter_groups_size", "1")
    assert count() == 4
