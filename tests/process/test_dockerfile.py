"""The Dockerfile copies what exists, and its pip commands build and install a working package.

There is no container engine here: base images, apt-get and users are not tried.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KNOWN = {"ARG", "CMD", "COPY", "ENV", "FROM", "RUN", "USER", "WORKDIR"}


def instructions() -> list[tuple[str, str]]:
    """Return the words and arguments of the Dockerfile, with continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = [line.partition(" ") for line in joined.split("\n") if line]
    return [(word, rest) for word, _, rest in found]


def copied() -> list[str]:
    """Return the paths of the source tree that are copied."""
    found: list[str] = []
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            found += rest.split()[:-1]
    return found


def is_sent(path: str) -> bool:
    """Return whether .dockerignore lets the path through; the last matching rule decides."""
    sent = True
    for rule in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if rule and not rule.startswith("#") and fnmatch.fnmatch(path, rule.removeprefix("!")):
            sent = rule.startswith("!")
    return sent


def pip_words(command: str) -> str:
    """Return the one line of RUN that calls `pip COMMAND`, up to the next command."""
    [line] = [rest for word, rest in instructions() if word == "RUN" and f"pip {command} " in rest]
    return line.split(" && ")[0].strip()


def test_dockerfile_has_known_instructions_and_copies_what_is_there() -> None:
    assert {word for word, _ in instructions()} == KNOWN
    stages = [rest for word, rest in instructions() if word == "FROM"]
    assert len(stages) == 2
    assert stages[0].endswith(" AS build")
    for path in copied():
        assert (ROOT / path).exists(), path
        assert is_sent(path), f".dockerignore keeps {path} from the builder"
    assert not is_sent(".venv")
    assert not is_sent("tests")


def test_image_runs_as_the_user_of_the_manifests() -> None:
    from sparsefleet.launch.manifests.pods import USER

    assert ("USER", str(USER)) in instructions()
    assert any(f"--uid {USER} " in rest for word, rest in instructions() if word == "RUN")


@pytest.mark.slow
def test_pip_commands_of_the_dockerfile_build_and_install_the_package(tmp_path: Path) -> None:
    source, wheels = tmp_path / "src", tmp_path / "wheels"
    source.mkdir()
    for path in copied():
        origin = ROOT / path
        if origin.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(origin, source / path, ignore=ignored)
        else:
            shutil.copy(origin, source / path)
    made = tmp_path / "venv"
    venv.create(made, with_pip=True)
    # The packages of the test environment replace those that pip would download.
    inherited = sysconfig.get_paths()["purelib"]
    inside = next((made / "lib").glob("python*/site-packages"))
    (inside / "inherited.pth").write_text(f"{inherited}\n")
    environ = {**os.environ, "PATH": f"{made / 'bin'}:{os.environ['PATH']}", "EXTRAS": ""}

    def run(line: str, directory: Path) -> None:
        line = line.replace("/wheels", str(wheels))
        done = subprocess.run(
            ["sh", "-ec", line], cwd=directory, env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run(pip_words("wheel"), source)
    shutil.copy(ROOT / "constraints.txt", wheels)
    run(pip_words("install"), tmp_path)
    shown = subprocess.run(
        [made / "bin" / "python", "-c", "import sparsefleet._core as core; print(core.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(shown.stdout.strip()).is_relative_to(inside), shown.stdout
    version = [made / "bin" / "sparsefleet", "--version"]
    assert b"sparsefleet" in subprocess.run(version, capture_output=True, check=True).stdout
