"""A command that fails after printing unparsable output: the failure is reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sparsefleet.data import Csv, MultiSlot, Reader, ReaderConfig, RecordFormat, Slot
from sparsefleet.errors import BadLineError, PipeCommandError, SchemaError

AD = Slot("ad", "uint64", ())
FORMATS = [Csv(AD), MultiSlot(AD)]


def read(path: Path, format: RecordFormat, script: str) -> list[object]:  # noqa: A002
    config = ReaderConfig(pipe_command=[sys.executable, "-S", "-c", script])
    return list(Reader(path, format, 2, config=config))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "part").write_text("1 7\n")
    return tmp_path / "part"


@pytest.mark.parametrize("format", FORMATS)
def test_the_failure_comes_before_what_was_printed(path: Path, format: RecordFormat) -> None:  # noqa: A002
    script = "import sys\nprint('usage: x', flush=True)\nsys.stderr.write('no model')\nsys.exit(4)"
    with pytest.raises(PipeCommandError, match="exit code 4, stderr: no model.*its output: .*part"):
        read(path, format, script)


@pytest.mark.parametrize("format", FORMATS)
def test_a_command_that_reading_has_stopped_is_not_reported_as_killed(
    path: Path,
    format: RecordFormat,  # noqa: A002
) -> None:
    script = "import threading\nprint('usage: x', flush=True)\nthreading.Event().wait()"
    with pytest.raises((BadLineError, SchemaError), match="stopped, since its output"):
        read(path, format, script)
