"""What `sparsefleet launch --on ray` refuses before it connects to a cluster."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from sparsefleet.cli.main import main

pytestmark = [
    pytest.mark.job,  # importing Ray takes seconds
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install sparsefleet[ray]"),
]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--keep-going"], "--keep-going is only for jobs with local processes"),
        (["--start-port", "9100"], "--start-port is only for jobs with local processes"),
        (["--show", "worker.0"], "--show is only for jobs with local processes"),
        (["--restart", "all"], "--restart all needs --durability off"),
    ],
)
def test_flags_that_ray_replaces_are_refused(
    flags: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["launch", "--on", "ray", *flags, str(script)])
    assert ended.value.code == 2
    assert error in capsys.readouterr().err
