"""What `python -m sparsefleet.as_paddle` starts in its place."""

from __future__ import annotations

import sys

import pytest

from sparsefleet.fluid.paddle import as_paddle as command
from sparsefleet.fluid.paddle.as_paddle import PROVIDED_PATH

MODULE = "sparsefleet.fluid.paddle"


class ReplacedError(Exception):
    """Raised in place of replacing the process."""


@pytest.mark.parametrize(
    ("started", "kept"),
    [
        (["-m", MODULE], []),
        (["-u", "-W", "error", "-m", MODULE], ["-u", "-W", "error"]),
        (["-um", MODULE], ["-u"]),
        ([f"-m{MODULE}"], []),
        (["-u", "fluid/paddle/as_paddle.py"], ["-u"]),
    ],
)
def test_flags_of_python_stay_and_those_of_the_script_are_its_own(
    started: list[str], kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(path: str, words: list[str], environment: dict[str, str]) -> None:
        assert path == sys.executable
        assert environment["PYTHONPATH"].startswith(PROVIDED_PATH)
        raise ReplacedError(words)

    arguments = [__file__, "-m", "5"]
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, *started, *arguments])
    monkeypatch.setattr("os.execve", replace)
    with pytest.raises(ReplacedError) as found:
        command.main(arguments)
    assert found.value.args[0] == [sys.executable, *kept, *arguments]
