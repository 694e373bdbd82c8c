"""The page on clusters is correct: its script runs, and its commands are ones that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sparsefleet.cli.launch import launch_config
from sparsefleet.cli.main import make_parser
from sparsefleet.cli.manifest import manifest_config

PAGE = (Path(__file__).parents[3] / "docs" / "clusters.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)


def commands() -> list[list[str]]:
    """Return the words of every `sparsefleet` command in a block."""
    lines = [
        line.split("  #")[0]
        for language, block in BLOCKS
        if not language
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [
        shlex.split(line.removesuffix(" &")) for line in lines if line.startswith("sparsefleet")
    ]


def test_script_on_the_page_trains() -> None:
    [block] = [block for language, block in BLOCKS if language == "python"]
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(block, "docs/clusters.md", "exec"), names)
    assert names["trainer"] is not None


@pytest.mark.parametrize("words", commands(), ids=lambda words: "-".join(words[1:3]))
def test_commands_on_the_page_are_understood(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    options = make_parser().parse_args(words[1:])
    if options.command == "launch":
        assert launch_config(options).nodes == ("host1", "host2")
    elif options.command == "manifest":
        config = manifest_config(options)
        assert (config.servers.count, config.workers.count) == (4, 16)
        assert config.arguments == ("--epochs", "3")


def test_page_has_a_command_for_each_way() -> None:
    kinds = {tuple(words[1:3]) for words in commands()}
    assert {("manifest", "slurm"), ("manifest", "jobset")} <= kinds
    for kind in ("trainjob", "rayjob"):
        assert f"`sparsefleet manifest {kind}`" in PAGE
