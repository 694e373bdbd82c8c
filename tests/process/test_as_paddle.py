"""`python -m sparsefleet.as_paddle`: the environment of a script that imports `paddle`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.process.paddle_run import SOURCE, run, run_as_paddle

NAMES = """
import sys
import paddle
import paddle.fluid as fluid
import paddle.fluid.layers as layers
from paddle.fluid.framework import Program
from paddle.fluid import core
import sparsefleet.fluid

assert __name__ == "__main__" and __file__.endswith("names.py")
assert fluid is sparsefleet.fluid is paddle.fluid
assert layers is fluid.layers and Program is fluid.Program and core is fluid.core
assert fluid.__name__ == fluid.__spec__.name == "sparsefleet.fluid"
assert paddle.__version__ == paddle.version.full_version
fluid.require_version("1.6.0")
assert list(paddle.batch(paddle.reader.shuffle(lambda: iter("abc"), 9), 2)())
assert paddle.dataset.mnist.train and paddle.compat.to_text(b"a") == "a"
paddle.enable_static()
print(sys.argv[1:])
"""


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return name


def output(folder: Path, *words: str, flags: tuple[str, ...] = (), **variables: str) -> str:
    done = run_as_paddle(folder, *words, flags=flags, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_paddle_is_sparsefleet_by_another_name(tmp_path: Path) -> None:
    found = output(tmp_path, write(tmp_path, "names.py", NAMES), "--lr", "0.1", "-x")
    assert found == "['--lr', '0.1', '-x']\n"


def test_the_printed_folder_gives_paddle_to_any_python(tmp_path: Path) -> None:
    folder = output(tmp_path, "--path").strip()
    done = run(tmp_path, write(tmp_path, "names.py", NAMES), PYTHONPATH=f"{folder}:{SOURCE}")
    assert done.returncode == 0, done.stderr


def test_nothing_named_paddle_is_visible_outside(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", "import sparsefleet.fluid.paddle; import paddle")
    assert "No module named 'paddle'" in done.stderr


def test_it_wins_over_an_installed_paddle_and_children_see_it(tmp_path: Path) -> None:
    installed = tmp_path / "installed" / "paddle"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("raise ImportError('the installed one')")
    script = """
import subprocess, sys
import paddle
print("script", paddle.__version__, flush=True)
subprocess.run([sys.executable, "-c", "import paddle; print('child', paddle.__version__)"])
"""
    path = f"{tmp_path / 'installed'}:{SOURCE}"
    found = output(tmp_path, write(tmp_path, "train.py", script), PYTHONPATH=path)
    assert found == "script 1.8.5\nchild 1.8.5\n"


def test_modules_run_and_flags_of_python_stay(tmp_path: Path) -> None:
    help_text = output(tmp_path, "-m", "paddle.distributed.launch_ps", "--help")
    assert "--worker_num" in help_text
    script = "import sys; print(sys.flags.dev_mode, sys.warnoptions)"
    name = write(tmp_path, "flags.py", script)
    assert output(tmp_path, name, flags=("-X", "dev", "-W", "ignore")).startswith("True")


def test_the_exit_code_is_the_scripts(tmp_path: Path) -> None:
    name = write(tmp_path, "fail.py", "raise SystemExit(3)")
    assert run_as_paddle(tmp_path, name).returncode == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no script was given"),
        (("-m",), "-m needs a module name"),
        (("--lr", "1"), "unknown flag --lr"),
        (("missing.py",), "'missing.py' does not exist"),
    ],
)
def test_wrong_command_lines_are_explained(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = run_as_paddle(tmp_path, *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    script = """
import paddle
for code in ("import paddle.fluid.dygraph.nothing", "from paddle.fluid import nothing",
             "import paddle.nn", "paddle.nn", "paddle.fluid.layers.nothing"):
    try:
        exec(code)
    except (ImportError, AttributeError) as error:
        print(f"{code}: {error}")
"""
    found = output(tmp_path, write(tmp_path, "names.py", script)).splitlines()
    assert len(found) == 5
    for line in found[:1] + found[2:]:
        assert "is not supported by sparsefleet; docs/coming_from_fluid.md" in line, line
    assert "nothing" in found[1]


OLD_SPELLINGS = """
import collections, time
import numpy as np
import paddle.fluid as fluid

assert isinstance([], collections.Iterable) and time.clock() >= 0
assert np.zeros(2, np.int).dtype == int and np.float is float and np.product([2, 3]) == 6
assert 1 <= np.random.random_integers(3) <= 3
value = fluid.layers.fill_constant([1], "float32", 2.5)
exe = fluid.Executor(fluid.CPUPlace())
(found,) = exe.run(fetch_list=[value])
assert float(found) == 2.5 and "%.1f %d" % (found, found * 2) == "2.5 5"
assert float(np.array(found)) == 2.5 and type(found + 1) is type(found)
(tensor,) = exe.run(fetch_list=[value], return_numpy=False)
assert float(np.array(tensor)) == 2.5
assert ["%.1f" % row for row in np.zeros((2, 1))] == ["0.0", "0.0"] and int(np.exp([0.0])) == 1
assert np.array([[1], [2, 3]]).dtype == object
assert str([np.mean(found), found]) == "[2.5, array([2.5], dtype=float32)]"
try:
    float(np.array([1.0, 2.0]))
except (TypeError, ValueError):
    print("ok")
"""


def test_old_spellings_of_python_and_numpy_work(tmp_path: Path) -> None:
    assert output(tmp_path, write(tmp_path, "old.py", OLD_SPELLINGS)) == "ok\n"
