"""Merged metrics equal one that saw all data, bit for bit; states survive as bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparsefleet.errors import ConfigError
from sparsefleet.metrics import (
    AUC,
    GAUC,
    Accuracy,
    Calibration,
    LogLoss,
    Metric,
    MetricSet,
    NormalizedEntropy,
)

MAKERS: dict[str, Callable[[], Metric]] = {
    "auc": AUC,
    "pr": lambda: AUC(num_thresholds=37, curve="PR"),
    "accuracy": lambda: Accuracy(threshold=0.3),
    "argmax": lambda: Accuracy(threshold=None),
    "calibration": Calibration,
    "calibration_error": lambda: Calibration(report="error", num_buckets=10),
    "gauc": GAUC,
    "log_loss": LogLoss,
    "normalized_entropy": NormalizedEntropy,
}


def make_set() -> MetricSet:
    return MetricSet({name: make() for name, make in MAKERS.items()})


@st.composite
def divided_examples(draw: st.DrawFn) -> tuple[list[np.ndarray], list[int]]:
    """Predictions [B, 2], labels, groups; and where to cut them."""
    size = draw(st.integers(1, 200))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    width = 32 if dtype is np.float32 else 64
    scores = draw(hnp.arrays(dtype, size, elements=st.floats(0, 1, width=width)))
    labels = draw(hnp.arrays(np.int64, size, elements=st.integers(0, 1)))
    groups = draw(hnp.arrays(np.int64, size, elements=st.integers(-3, 3)))
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=4)))
    return [np.stack((1 - scores, scores), axis=1), labels, groups], [0, *cuts, size]


def bits(figures: dict[str, float]) -> dict[str, bytes]:
    return {name: struct.pack("<d", value) for name, value in figures.items()}


@settings(deadline=None)
@given(divided_examples(), st.randoms(use_true_random=False))
def test_parts_merged_in_any_order_are_bit_for_bit_the_whole(
    drawn: tuple[list[np.ndarray], list[int]], random: Any
) -> None:
    (predictions, labels, groups), cuts = drawn
    whole = make_set()
    whole.update(predictions, labels, groups=groups)

    parts = []
    for start, end in pairwise(cuts):
        part = make_set()
        part.update(predictions[start:end], labels[start:end], groups=groups[start:end])
        parts.append(part)
    random.shuffle(parts)
    merged, from_bytes = parts[0].empty_copy(), parts[0].empty_copy()
    for part in parts:
        merged.merge(part)
        from_bytes.merge_state(part.state())

    assert bits(merged.compute()) == bits(whole.compute())
    assert from_bytes.state() == merged.state()
    assert bits(MetricSet.from_state(merged.state()).compute()) == bits(whole.compute())


def test_many_large_batches_in_another_order_are_bit_for_bit_the_same() -> None:
    rng = np.random.default_rng(0)
    size = 100_000
    scores = rng.random(size, np.float32)
    predictions = np.stack((1 - scores, scores), axis=1)
    labels, groups = rng.random(size) < scores, rng.integers(0, 5000, size)
    whole, pieces = make_set(), make_set()
    whole.update(predictions, labels, groups=groups)
    order = rng.permutation(size)
    for start in range(0, size, 999):
        rows = order[start : start + 999]
        pieces.update(predictions[rows], labels[rows], groups=groups[rows])
    assert bits(pieces.compute()) == bits(whole.compute())


def filled(make: Callable[[], Metric]) -> Metric:
    metric = make()
    predictions = np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]])
    metric.update(predictions, np.array([0, 1, 0]), groups=np.array([4, 4, 5]))
    return metric


@pytest.mark.parametrize("name", MAKERS)
def test_state_restores_the_same_metric(name: str) -> None:
    metric = filled(MAKERS[name])
    restored = Metric.from_state(metric.state())
    assert type(restored) is type(metric)
    assert repr(restored) == repr(metric)
    assert restored.state() == metric.state()
    assert type(metric).from_state(metric.state()).compute() == metric.compute()


@pytest.mark.parametrize("name", MAKERS)
def test_merging_leaves_the_other_as_it_was(name: str) -> None:
    one, other = filled(MAKERS[name]), filled(MAKERS[name])
    before = other.state()
    one.merge(other)
    one.update(np.array([[0.5, 0.5]]), np.array([1]), groups=np.array([4]))
    assert other.state() == before


@pytest.mark.parametrize("name", MAKERS)
def test_a_metric_merged_into_itself_has_seen_all_twice(name: str) -> None:
    metric, twice = filled(MAKERS[name]), filled(MAKERS[name])
    twice.merge(filled(MAKERS[name]))
    metric.merge(metric)
    assert metric.state() == twice.state()


UNLIKE = [
    (AUC(), AUC(num_thresholds=100)),
    (AUC(), AUC(curve="PR")),
    (Accuracy(), Accuracy(threshold=None)),
    (Calibration(), Calibration(num_buckets=16)),
    (LogLoss(), NormalizedEntropy()),
    (NormalizedEntropy(), LogLoss()),
    (GAUC(), AUC()),
]


@pytest.mark.parametrize(("one", "other"), UNLIKE, ids=repr)
def test_metrics_of_other_kind_or_settings_do_not_merge(one: Metric, other: Metric) -> None:
    before = one.state()
    with pytest.raises(ConfigError, match="cannot merge"):
        one.merge(other)
    with pytest.raises(ConfigError, match="cannot merge"):
        one.merge_state(other.state())
    assert one.state() == before


def test_message_of_a_failed_merge_names_both() -> None:
    with pytest.raises(ConfigError) as raised:
        AUC().merge(AUC(num_thresholds=100))
    assert str(raised.value) == (
        "cannot merge AUC(num_thresholds=100, curve='ROC') "
        "into AUC(num_thresholds=65535, curve='ROC')"
    )
    with pytest.raises(ConfigError, match="cannot merge a float into AUC"):
        AUC().merge(0.5)  # type: ignore[arg-type]


def test_state_of_another_class_is_refused_by_a_class() -> None:
    with pytest.raises(ConfigError, match="expected AUC, got 'LogLoss'"):
        AUC.from_state(LogLoss().state())
    with pytest.raises(ConfigError, match="expected MetricSet, got 'AUC'"):
        MetricSet.from_state(AUC().state())
    with pytest.raises(ConfigError, match="expected Metric, got 'MetricSet'"):
        Metric.from_state(make_set().state())


def test_sets_merge_all_or_nothing() -> None:
    metrics = MetricSet({"auc": AUC(), "loss": LogLoss()})
    before = metrics.state()
    for other in (
        MetricSet({"auc": AUC()}),
        MetricSet({"auc": AUC(), "log_loss": LogLoss()}),
        MetricSet({"auc": filled(AUC), "loss": NormalizedEntropy()}),
    ):
        with pytest.raises(ConfigError, match="cannot merge"):
            metrics.merge(other)
        with pytest.raises(ConfigError, match="cannot merge"):
            metrics.merge_state(other.state())
        assert metrics.state() == before
    with pytest.raises(ConfigError, match="cannot merge a dict"):
        metrics.merge({"auc": AUC()})  # type: ignore[arg-type]


def test_sets_merge_by_name_not_by_position() -> None:
    one = MetricSet({"auc": filled(AUC), "loss": filled(LogLoss)})
    turned = MetricSet({"loss": filled(LogLoss), "auc": filled(AUC)})
    one.merge_state(turned.state())
    one.merge(turned)
    assert one["auc"].positives.sum() == 3  # type: ignore[attr-defined]


def test_a_set_refuses_other_objects_and_duplicates() -> None:
    with pytest.raises(ConfigError, match=r"got 'auc': 0\.5"):
        MetricSet({"auc": 0.5})  # type: ignore[dict-item]
    auc = AUC()
    with pytest.raises(ConfigError, match="two names"):
        MetricSet({"auc": auc, "again": auc})


def test_a_set_reads_as_a_mapping_and_resets_together() -> None:
    metrics = MetricSet({"auc": filled(AUC), "loss": filled(LogLoss)})
    assert list(metrics) == ["auc", "loss"]
    assert isinstance(metrics["auc"], AUC)
    metrics.reset()
    assert metrics.state() == metrics.empty_copy().state()


def frame(header: bytes, payload: bytes, magic: bytes = b"SFMT", version: int = 1) -> bytes:
    """Build a state by hand, as described in docs/metrics.md."""
    body = struct.pack("<4sIIQ", magic, version, len(header), len(payload)) + header + payload
    return body + struct.pack("<I", zlib.crc32(body))


def test_state_has_the_documented_layout() -> None:
    accuracy = filled(MAKERS["accuracy"])
    header = b'{"metric":"Accuracy","settings":{"threshold":0.3}}'
    assert accuracy.state() == frame(header, struct.pack("<2q", 3, 3))
    gauc = filled(GAUC)
    samples = ((4, 0.1, 0), (4, 0.6, 1), (5, 0.3, 0))
    payload = b"".join(struct.pack("<qdB", *sample) for sample in samples)
    assert gauc.state() == frame(b'{"metric":"GAUC","settings":{}}', payload)


ACCURACY = b'{"metric":"Accuracy","settings":{"threshold":0.5}}'
BAD_STATES = {
    "empty": b"",
    "other bytes": b"no metric at all, but long enough",
    "other magic": frame(ACCURACY, bytes(16), magic=b"SFMX"),
    "other version": frame(ACCURACY, bytes(16), version=2),
    "two frames": frame(ACCURACY, bytes(16)) * 2,
    "no JSON": frame(b"{", bytes(16)),
    "no UTF-8": frame(b"\xff\xfe", bytes(16)),
    "no metric": frame(b'{"settings":{}}', bytes(16)),
    "list": frame(b"[]", bytes(16)),
    "settings of wrong type": frame(b'{"metric":"Accuracy","settings":[]}', bytes(16)),
    "unknown metric": frame(b'{"metric":"Precision","settings":{}}', bytes(16)),
    "abstract metric": frame(b'{"metric":"CountMetric","settings":{}}', bytes(16)),
    "unknown setting": frame(b'{"metric":"Accuracy","settings":{"top":1}}', bytes(16)),
    "bad setting": frame(b'{"metric":"Accuracy","settings":{"threshold":7}}', bytes(16)),
    "short payload": frame(ACCURACY, bytes(8)),
    "long payload": frame(ACCURACY, bytes(24)),
    "negative count": frame(ACCURACY, struct.pack("<2q", -1, 3)),
    "part of a sample": frame(b'{"metric":"GAUC","settings":{}}', bytes(18)),
    "nan score": frame(b'{"metric":"GAUC","settings":{}}', struct.pack("<qdB", 1, float("nan"), 0)),
    "label two": frame(b'{"metric":"GAUC","settings":{}}', struct.pack("<qdB", 1, 0.5, 2)),
}


@pytest.mark.parametrize("name", BAD_STATES)
def test_bytes_that_are_not_a_state_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        Metric.from_state(BAD_STATES[name])


@pytest.mark.parametrize("names", [b"null", b'["a"]', b'["a","a"]', b'["a",["b"]]'])
def test_sets_whose_names_do_not_fit_are_refused(names: bytes) -> None:
    header = b'{"metric":"MetricSet","settings":{"names":' + names + b"}}"
    with pytest.raises(ConfigError, match="do not match the names"):
        MetricSet.from_state(frame(header, AUC().state() * 2))


def test_a_state_must_be_bytes() -> None:
    with pytest.raises(ConfigError, match="must be bytes, got str"):
        Metric.from_state("state")  # type: ignore[type-var, arg-type]


@settings(deadline=None)
@given(st.data())
def test_cut_or_flipped_states_are_refused(data: st.DataObject) -> None:
    state = filled(MAKERS["calibration"]).state()
    cut = data.draw(st.integers(0, len(state) - 1))
    with pytest.raises(ConfigError, match="metric state"):
        Metric.from_state(state[:cut])
    flipped = bytearray(state)
    flipped[data.draw(st.integers(0, len(state) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ConfigError, match="metric state"):
        Metric.from_state(bytes(flipped))
