from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.bench import bench_path  # noqa: F401
from tests.unit.bench.recorded_day import all_figures

from charts import draw_charts
from day_record import DayRecord, circumstances
from day_report import write_report
from parts import PARTS
from report_sections import SECTIONS
from side_medians import SideMedians
from targets import WANTED, Verdict, target_rows
from time_account import cpu_account

PNG = b"\x89PNG\r\n\x1a\n"


def recorded(folder: Path, *, without: tuple[str, ...] = ()) -> DayRecord:
    record = DayRecord(folder / "2026-01-02.json")
    entry = {**circumstances(), "quick": False, "error": None, "took_s": 3.0, "cpu_s": 5.0}
    for name, figures in all_figures().items():
        if name not in without:
            record.put(name, {**entry, "command": f"python bench/{name}.py", "figures": figures})
    return record


def test_every_part_has_a_section_and_invented_figures() -> None:
    assert {part.name for part in PARTS} == set(SECTIONS) == set(all_figures())


def test_tables_and_quality_of_older_records_are_still_shown() -> None:
    one = {"ns_per_row": {"lookup 1": [7.0, 6.0, 8.0]}, "memory_ratio": 1.1, "resident_ratio": 1.2}
    [_, tables] = SECTIONS["tables"][1]({"rows": 10, "dim": 4, "batch": 2_600, "sgd": one})
    assert "| sgd | 2,600 | 7 | 1.100 | 1.200 |" in tables
    side = {"auc": 0.7, "deviation": 0.0, "difference": 0.0, "standard_error": 0.0}
    old = {"examples": 80_000, "batch": 100, "lr": 0.2, "best": 0.8, "sides": {"ours": side}}
    about, table = SECTIONS["quality"][1](old)
    assert "of half that per worker" not in about
    assert "| ours | 0.7000 |" in table


def test_report_shows_every_part_its_charts_and_its_failures(tmp_path: Path) -> None:
    record = recorded(tmp_path, without=("serving",))
    record.put(
        "serving", {**record.parts["tables"], "error": "exited with code 1; it last said:\nx"}
    )
    charts = draw_charts(record, tmp_path / "images")
    page = write_report(record, charts).read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## Targets",
        *(f"## {title}" for title, _ in SECTIONS.values()),
        "## How it was run",
    ]
    files = [path for paths in charts.values() for path in paths]
    assert len(files) == len({path.name for path in files}) >= 9
    for path in files:
        assert path.read_bytes().startswith(PNG)
        assert f"](images/{path.name})" in page
    assert "it last said" in page
    assert "last words" in page
    assert "skipped: no Python 3.7" in page


def test_targets_are_met_missed_or_not_measured(tmp_path: Path) -> None:
    rows = {row.work.partition(" (")[0]: row for row in target_rows(recorded(tmp_path))}
    local = rows["CTR-DNN local, 2 threads, batch 1000: examples/s"]
    assert [verdict.is_met for verdict in local.verdicts] == [True, True, True]
    assert local.floor.text() == "96% (>= 95%) **met**"
    sync = rows["CTR-DNN sync, batch 1000: examples/s"]
    assert [verdict.is_met for verdict in sync.verdicts] == [False, True, False]
    estimator = rows["skip-gram, 2 threads: words/s"]
    assert estimator.torch.text() == "1.50x (>= 1x) **met**"
    assert rows["skip-gram, geo 2x2: words/s"].torch.text() == "not measured (>= 0.9x)"
    assert sync.paddle.text() == "3.00x (>= 3.5x) **missed**"
    crashed = rows["CTR-DNN half_async, batch 100: examples/s"]
    assert crashed.paddle.text() == "not measured (>= 4x)"
    cpu = rows["CTR-DNN sync, batch 1000: CPU time per example"]
    assert [verdict.is_met for verdict in cpu.verdicts] == [True, True, None]
    reading = rows["MultiSlot reading, 1 thread: records/s"]
    assert reading.torch.is_met
    assert reading.paddle.is_met is None


def test_two_threads_are_compared_with_the_better_setting_of_torch(tmp_path: Path) -> None:
    record = recorded(tmp_path)
    local = record.figures("ctr-local")
    assert local is not None
    slow, fast = ({"sections": {"100": [{"examples_per_s": rate}]}} for rate in (1.0, 7.0))
    local["local"] |= {"torch local 1": fast, "torch local 2": slow}
    [wanted] = [one for one in WANTED if one.how == "local 2"]
    assert wanted.torch_side(SideMedians(record), 100) == "torch local 1"


def test_auc_is_reported_with_its_spread(tmp_path: Path) -> None:
    page = write_report(recorded(tmp_path), {}).read_text(encoding="utf-8")
    assert "| sparsefleet async 2x2 | 0.6990 | 0.0020 | -0.0010 ± 0.0004 |" in page


def test_word2vec_is_reported_by_batch(tmp_path: Path) -> None:
    rows = {row.work: row for row in target_rows(recorded(tmp_path)) if "word2vec" in row.work}
    small, large = (
        rows[f"word2vec geo 2x2, batch {batch}: pairs/s (in the middle: over gensim)"]
        for batch in (100, 1000)
    )
    assert (small.torch.found, large.torch.found) == (1.0, None)
    assert (small.paddle.found, small.paddle.target) == (None, 2.0)


def test_missed_targets_say_where_their_time_goes(tmp_path: Path) -> None:
    record = recorded(tmp_path)
    for entry in record.parts.values():
        entry["machine"] = "some CPU, 4 cores"
    rows = {row.work.partition(" (")[0]: row for row in target_rows(record)}
    sync = rows["CTR-DNN sync, batch 1000: examples/s"]
    assert sync.is_missed
    assert sync.account == (
        "133.3 us of 4 cores for one example: matrix products 36.0 (27%), servers 4.0 (3%), "
        "idle 93.3 (70%)"
    )
    assert not rows["CTR-DNN half_async, batch 1000: examples/s"].account
    page = write_report(record, {}).read_text(encoding="utf-8")
    assert f"- CTR-DNN sync, batch 1000: examples/s: {sync.account}" in page
    assert "- CTR-DNN local, 2 threads, batch 1000: examples/s:" not in page


def test_time_outside_of_products_is_split_into_workers_servers_and_idle_cores() -> None:
    told = cpu_account(2, 20_000, 90.0, 40.0, server_us=10.0)
    assert told == (
        "100.0 us of 2 cores for one example: matrix products 40.0 (40%), "
        "what else workers do 40.0 (40%), servers 10.0 (10%), idle 10.0 (10%)"
    )


def test_report_of_nothing_names_all_targets(tmp_path: Path) -> None:
    record = DayRecord(tmp_path / "2026-01-02.json")
    page = write_report(record, draw_charts(record, tmp_path)).read_text(encoding="utf-8")
    assert page.count("not measured (") == sum(
        1 for row in target_rows(record) for verdict in row.verdicts if verdict.target is not None
    )


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (Verdict(0.5, 0.5, is_upper=True), "0.50x (<= 0.5x) **met**"),
        (Verdict(0.51, 0.5, is_upper=True), "0.51x (<= 0.5x) **missed**"),
        (Verdict(2.0), "2.00x"),
        (Verdict(None), ""),
    ],
)
def test_verdicts_say_what_was_found_and_wanted(verdict: Verdict, text: str) -> None:
    assert verdict.text() == text
