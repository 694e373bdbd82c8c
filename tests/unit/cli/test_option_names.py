"""Errors of the command line name options, not the classes that hold their values."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from sparsefleet.cli.main import main

JOBSET = "manifest jobset --image ads:1 --servers 1 --workers 1"
PLAN = "plan --rows 1e6 --dim 16"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("launch --servers -1 {}", "--servers must be an int in 0..65536, got -1"),
        ("launch --workers 0 {}", "--workers must be"),
        ("launch --start-port 70000 {}", "--start-port must be an int in 0..65535"),
        ("launch --nodes a,b {}", "--start-port is required with nodes"),
        (f"{JOBSET} --worker-cpus -1 {{}}", "--worker-cpus must be an int in 1..4096, got -1"),
        (f"{JOBSET} --server-memory 1M {{}}", "--server-memory must be an int in"),
        (f"{JOBSET} --grace-seconds 0 {{}}", "--grace-seconds must be an int in 1..86400, got 0"),
        (f"{JOBSET} --port 99999 {{}}", "--port must be an int in"),
        (
            "manifest slurm --option time=3 {}",
            "--option must be options such as --partition=cpu, got ('time=3',)",
        ),
        (f"{PLAN} --distinct 2", "--distinct must be at most 1, got 2"),
        (f"{PLAN} --batch 100000000", "--batch must be an int in 1..10000000, got 100000000"),
    ],
)
def test_a_wrong_value_is_reported_with_its_option(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    try:
        code = main(line.format(script).split())
    except SystemExit as error:
        code = int(str(error.code))
    assert code in (1, 2)
    last = capsys.readouterr().err.splitlines()[-1]
    assert f": error: {said}" in last


@pytest.mark.job  # importing Ray takes seconds
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install sparsefleet[ray]")
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--worker-cpus=-1", "--worker-cpus must be a finite number >= 0, got -1.0"),
        ("--server-cpus=nan", "--server-cpus must be a finite number >= 0, got nan"),
        ("--server-memory=much", "--server-memory must be a number of bytes or text"),
    ],
)
def test_wrong_resources_are_reported_before_a_ray_cluster_is_started(
    option: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(SystemExit):
        main(["launch", "--on", "ray", "--servers", "1", option, str(script)])
    assert f": error: {said}" in capsys.readouterr().err.splitlines()[-1]
    assert not ray.is_initialized()
