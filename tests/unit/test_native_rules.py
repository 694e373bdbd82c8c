"""Rules of the native code that no compiler checks: includes between folders, locks."""

from __future__ import annotations

import re
import shutil
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core"
# Test and benchmark programs, and core/testing, may include anything.
PROGRAMS = re.compile(r"_(test|fuzz|bench)\.cc$")
INCLUDE = re.compile(r'^#include "(?:(\w+)/)?[\w./]+"', re.MULTILINE)


def included_folders(source: Path) -> set[str]:
    """Return the folders that a file includes by name; "" is its own."""
    return {match[1] or "" for match in INCLUDE.finditer(source.read_text(encoding="utf-8"))}


def test_folders_of_core_include_each_other_without_cycles() -> None:
    graph: dict[str, set[str]] = {}
    for source in [*CORE.rglob("*.h"), *CORE.rglob("*.cc")]:
        folder = source.parent.name
        if folder == "testing" or PROGRAMS.search(source.name):
            continue
        includes = included_folders(source)
        unknown = {name for name in includes if not (CORE / name).is_dir()}
        assert not unknown, f"{source} includes {unknown}, which core/ does not have"
        assert "testing" not in includes, f"{source} includes code for tests"
        graph.setdefault(folder, set()).update(includes - {folder, ""})
    assert len(graph) > 5
    TopologicalSorter(graph).prepare()  # raises CycleError naming the cycle


def test_core_includes_neither_python_nor_bindings() -> None:
    headers = {path.name for path in (ROOT / "bindings").glob("*.h")}
    for source in [*CORE.rglob("*.h"), *CORE.rglob("*.cc")]:
        text = source.read_text(encoding="utf-8")
        names = set(re.findall(r'^#include ["<]([\w./]+)[">]', text, re.MULTILINE))
        assert not names & headers, source
        assert not {name for name in names if name.startswith(("Python.h", "nanobind"))}, source


@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++")
@pytest.mark.skipif(not (ROOT / ".venv" / "bin" / "python").exists(), reason="needs make's .venv")
@pytest.mark.parametrize("statement", ["return count_;", "MutexLock lock(mutex_); return count_;"])
def test_lint_refuses_a_guarded_member_used_without_its_lock(
    tmp_path: Path, statement: str
) -> None:
    source = tmp_path / "counter.cc"
    source.write_text(
        '#include "sync/mutex.h"\n'
        "class Counter {\n"
        " public:\n"
        f"  int count() {{ using namespace sparsefleet; {statement} }}\n"
        " private:\n"
        "  sparsefleet::Mutex mutex_;\n"
        "  int count_ GUARDED_BY(mutex_) = 0;\n"
        "};\n"
        "int Read(Counter& counter) { return counter.count(); }\n"
    )
    # -o: the tools need not be up to date.
    command = ["make", "-o", ".venv/stamps/tools", "lint-locks", f"LOCK_SOURCES={source}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "MutexLock" in statement:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert "reading variable 'count_' requires holding mutex 'mutex_'" in done.stderr
