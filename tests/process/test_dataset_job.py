"""Data shared by workers that are processes."""

from __future__ import annotations

from pathlib import Path

from tests.support.launch_process import LaunchProcess

SCRIPT = Path(__file__).with_name("dataset_script.py")
NUM_RECORDS = 1200


def test_workers_of_a_job_get_every_record_exactly_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for index in range(6):
        keys = range(index * NUM_RECORDS // 6, (index + 1) * NUM_RECORDS // 6)
        (data / f"part-{index}").write_text("".join(f"1 {key}\n" for key in keys))
    launched = LaunchProcess(tmp_path, "--servers", "2", "--workers", "2", str(SCRIPT), str(data))
    try:
        assert launched.wait() == 0, launched.output()
    finally:
        launched.close()
    for how in ("shuffle0", "shuffle1", "epoch0", "epoch1"):
        got = [
            [int(key) for key in (data / f"got-{how}-{worker}").read_text().split()]
            for worker in range(2)
        ]
        assert sorted(got[0] + got[1]) == list(range(NUM_RECORDS)), how
        if how.startswith("shuffle"):
            assert abs(len(got[0]) - len(got[1])) <= 4
            for part in got:
                assert len([key for key in part if key < NUM_RECORDS // 2]) > 200  # of both workers
