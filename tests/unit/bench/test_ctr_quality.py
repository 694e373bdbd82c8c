"""The data, the batches and the figures of bench/ctr_quality.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.bench import bench_path  # noqa: F401

import ctr_quality
import quality_data
from ctr_names import OURS, PADDLE, TORCH
from ctr_start import SideSpec, Sources, fleet
from quality_data import TASKS, generated_log, scaled
from report_sections import quality_section
from sparsefleet.errors import InputMissingError


@pytest.mark.parametrize(
    ("spec", "batch"),
    [
        (SideSpec(engine=OURS, threads=2), 100),
        (fleet("sync"), 50),
        (fleet("hybrid"), 50),
        (fleet("half_async"), 100),
        (fleet("async"), 100),
        (fleet("geo"), 100),
        (fleet("sync", PADDLE), 50),
        (fleet("geo", PADDLE), 100),
        (SideSpec(engine=TORCH), 100),
        (SideSpec(engine=TORCH, workers=2), 50),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_workers_that_are_averaged_share_a_batch(spec: SideSpec, batch: int) -> None:
    assert ctr_quality.batch_of(spec, 100) == batch


def test_only_sides_with_a_single_thread_share_the_machine() -> None:
    groups = ctr_quality.groups_of(ctr_quality.SPECS)
    assert [[spec.name for spec in group] for group in groups[:3]] == [
        ["sparsefleet local 1", "torch local 1"],
        ["PaddlePaddle local 1"],
        ["sparsefleet local 2"],
    ]
    assert sorted(spec.name for group in groups for spec in group) == sorted(
        spec.name for spec in ctr_quality.SPECS
    )
    assert all(len(group) == 1 for group in groups[1:])


def test_a_generated_log_is_split_and_its_best_auc_is_known() -> None:
    split = generated_log(3, True)
    assert (len(split.trained.clicks), len(split.held_out.clicks)) == (8_000, 4_000)
    assert split.trained.counts.shape == (8_000, 13)
    assert split.trained.ids.shape == (8_000, 26)
    assert split.trained.ids.min() == 0
    assert split.best is not None
    assert 0.75 < split.best < 0.95
    assert not np.array_equal(split.trained.ids, generated_log(4, True).trained.ids)


def test_numbers_are_scaled_and_unknown_ones_are_zero() -> None:
    texts = np.array(["1990", "", "0", "2099", "1900"])
    assert scaled(texts, 1900.0, 100.0).tolist() == pytest.approx([0.9, 0.0, 0.0, 1.2, 0.0])


def test_missing_ratings_are_reported_and_nothing_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(quality_data, "SHARED", tmp_path / "nowhere")
    quality_data.read_ratings.cache_clear()
    with pytest.raises(InputMissingError):
        quality_data.book_ratings(0, True)
    figures = ctr_quality.measure(TASKS["books"], ctr_quality.SPECS, 5, quick=True)
    assert "interactions.tsv" in figures["missing"]
    [text] = quality_section({"books": figures})
    assert text.startswith("No explicit ratings of Book-Crossing: ")
    assert "interactions.tsv" in text


def test_a_side_that_fails_leaves_the_others_their_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aucs = {"sparsefleet local 1": iter([0.71, 0.72]), "sparsefleet async 2x2": iter([0.70, 0.73])}

    def measure_side(
        spec: SideSpec, sources: Sources, held_out: Path, *, batch: int, examples: int
    ) -> float:
        assert sources.inputs == (13, 26)
        assert held_out.exists()
        assert (batch, examples) == (100, 8_000)
        if spec.engine == PADDLE:
            raise RuntimeError("skipped: no Python 3.7")
        return next(aucs[spec.name])

    monkeypatch.setattr(ctr_quality, "measure_side", measure_side)
    specs = [ctr_quality.REFERENCE, fleet("async"), SideSpec(engine=PADDLE)]
    figures = ctr_quality.measure(TASKS["generated"], specs, 2, quick=True)
    assert figures["sides"]["sparsefleet async 2x2"]["difference"] == pytest.approx(0.0)
    assert figures["sides"]["sparsefleet async 2x2"]["standard_error"] == pytest.approx(0.01)
    about, table, error = quality_section({"generated": figures})
    assert "2 seeds: 1 x 8,000 examples" in about
    assert "| sparsefleet async 2x2 | 0.7150 | 0.0212 | +0.0000 ± 0.0100 |" in table
    assert "| best possible | " in table
    assert "no Python 3.7" in error
