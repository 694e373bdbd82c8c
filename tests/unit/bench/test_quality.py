"""The order of runs and the tables of bench/quality.py."""

from __future__ import annotations

import argparse

from tests.unit.bench import bench_path  # noqa: F401

import quality


def test_runs_are_ordered_by_seed_and_only_single_processes_share_the_machine() -> None:
    options = argparse.Namespace(
        seeds=2, only="census_wide_deep,books_deepfm", modes="local,torch,async", parallel=2
    )
    done = {"census_wide_deep": {"local": [{"auc": 0.9}]}}
    assert quality.groups_of(done, options) == [
        [("census_wide_deep", "torch", 0), ("books_deepfm", "local", 0)],
        [("books_deepfm", "torch", 0)],
        [("census_wide_deep", "async", 0)],
        [("books_deepfm", "async", 0)],
        [("census_wide_deep", "local", 1), ("census_wide_deep", "torch", 1)],
        [("books_deepfm", "local", 1), ("books_deepfm", "torch", 1)],
        [("census_wide_deep", "async", 1)],
        [("books_deepfm", "async", 1)],
    ]


def test_a_loss_is_missed_only_beyond_noise_and_unclear_with_one_seed() -> None:
    runs = {
        "local": [{"auc": value} for value in (0.80, 0.81, 0.82)],
        "async": [{"auc": value} for value in (0.79, 0.8001, 0.8099)],
        "half_async": [{"auc": value} for value in (0.795, 0.806)],
        "sync": [{"auc": value} for value in (0.78, 0.82, 0.81)],
        "hybrid": [{"auc": 0.79}],
        "local sgd": [{"auc": 0.7}],
        "geo": [{"auc": 0.7}],
    }
    assert quality.table_of(runs, "auc")[2:] == [
        "| local | 3 | 0.8100 | 0.0100 |  |  |  |",
        "| async | 3 | 0.8000 | 0.0100 | -0.0100 | 0.0001 | missed |",
        "| half_async | 2 | 0.8005 | 0.0078 | -0.0045 | 0.0005 | unclear |",
        "| sync | 3 | 0.8033 | 0.0208 | -0.0067 | 0.0088 | unclear |",
        "| hybrid | 1 | 0.7900 |  | -0.0100 |  | unclear |",
        "| local sgd | 1 | 0.7000 |  |  |  |  |",
        "| geo | 1 | 0.7000 |  | +0.0000 |  | unclear |",
    ]
