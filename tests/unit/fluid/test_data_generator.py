from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsefleet
from sparsefleet.data import MultiSlot, Reader, ReaderConfig, Slot
from sparsefleet.errors import PipeCommandError
from sparsefleet.fluid.incubate.data_generator import (
    DataGenerator,
    MultiSlotDataGenerator,
    MultiSlotStringDataGenerator,
)

SCRIPT = """
import sys
from sparsefleet.fluid.incubate.data_generator import MultiSlotDataGenerator

class Clicks(MultiSlotDataGenerator):
    def generate_sample(self, line):
        def samples():
            click, price, *ads = line.rstrip("\\n").split(",")
            if click == "skip":
                yield None
                return
            values = [[int(click)], [float(price)], list(map(int, ads))]
            yield zip(["click", "price", "ads"], values)
        return samples

if __name__ == "__main__":
    Clicks().run_from_stdin()
    assert "torch" not in sys.modules, "loaded once a file: it must be light"
"""

FORMAT = MultiSlot(Slot("click", "uint64", ()), Slot("price", "float", ()), Slot("ads"))


class Doubling(MultiSlotDataGenerator):
    """Turns the number on a line into two samples; skips text."""

    def generate_sample(self, line: str | None) -> Callable[[], Iterator[Any]]:
        def samples() -> Iterator[Any]:
            for number in (1, 2) if line is None else [line]:
                if str(number).strip().isdigit():
                    yield [("n", [int(number)])]
                    yield [("n", [int(number) * 2])]
                else:
                    yield None

        return samples


def run_on(
    generator: DataGenerator, text: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> list[str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    generator.run_from_stdin()
    lines: list[str] = capsys.readouterr().out.splitlines()
    return lines


def test_lines_of_stdin_become_lines_of_slots(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run_on(Doubling(), "7\nskip me\n8\n", monkeypatch, capsys)
    assert lines == ["1 7", "1 14", "1 8", "1 16"]


def test_without_lines_samples_come_from_memory(capsys: pytest.CaptureFixture[str]) -> None:
    Doubling().run_from_memory()
    assert capsys.readouterr().out == "1 1\n1 2\n1 2\n1 4\n"


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_groups_of_samples_go_through_generate_batch(
    size: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Reversing(Doubling):
        def generate_batch(self, samples: list[Any]) -> Callable[[], Iterable[Any]]:
            sizes.append(len(samples))
            return lambda: reversed(samples)

    sizes: list[int] = []
    generator = Reversing()
    generator.set_batch(size)
    lines = run_on(generator, "1\n2\n3\n", monkeypatch, capsys)
    numbers = [1, 2, 2, 4, 3, 6]
    groups = [numbers[begin : begin + size] for begin in range(0, 6, size)]
    assert sizes == [len(group) for group in groups]
    assert lines == [f"1 {number}" for group in groups for number in reversed(group)]


def test_batch_sizes_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be an int >= 1"):
        Doubling().set_batch(0)


def test_what_is_left_open_says_what_to_write() -> None:
    with pytest.raises(NotImplementedError, match="must override generate_sample"):
        MultiSlotDataGenerator().run_from_memory()
    with pytest.raises(NotImplementedError, match="derive it from MultiSlotDataGenerator"):
        DataGenerator()._gen_str([])


def test_kinds_of_slots_are_kept_and_become_float_once_one_is_seen() -> None:
    generator = MultiSlotDataGenerator()
    assert generator._proto_info is None
    assert generator._gen_str([("a", [1]), ("b", [2.5, 1])]) == "1 1 2 2.5 1\n"
    assert generator._proto_info == [("a", "uint64"), ("b", "float")]
    assert generator._gen_str((("a", [np.float32(0.5)]), ("b", [np.int64(3)]))) == "1 0.5 1 3\n"
    assert generator._proto_info == [("a", "float"), ("b", "float")]
    generator._gen_str([["a", [True]], ["b", [7]]])
    assert generator._proto_info == [("a", "float"), ("b", "float")]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ("text", "must be a list of .slot name, values., got str"),
        (None, "got NoneType"),
        ([1, 2], "a slot of a sample must be .name, values., got 1"),
        ([(1, [1])], "a slot name must be a str, got 1"),
        ([("a", (1,))], "slot 'a': values must be a list, got tuple"),
        ([("a", [])], "slot 'a' has no values, expected at least one"),
        ([("a", ["1"])], "slot 'a': values must be ints or finite floats, got '1'"),
        ([("a", [float("nan")])], "finite floats, got nan"),
        ([("a", [1]), ("b", [1])], "a sample has 2 slots, but the first sample had 1"),
        ([("b", [1])], "slot 1 of a sample is 'b', but was 'a' in the first sample"),
    ],
)
def test_malformed_samples_are_refused(sample: Any, message: str) -> None:
    generator = MultiSlotDataGenerator()
    generator._gen_str([("a", [1])])
    with pytest.raises(ValueError, match=message):
        generator._gen_str(sample)


def test_texts_are_written_as_they_are() -> None:
    generator = MultiSlotStringDataGenerator()
    assert generator._gen_str(zip("ab", [["1", "2"], ["x"]], strict=True)) == "2 1 2 1 x\n"
    assert generator._gen_str([("a", [])]) == "0 \n"
    with pytest.raises(ValueError, match="got int"):
        generator._gen_str(7)  # type: ignore[arg-type]


Samples = st.lists(
    st.tuples(
        st.integers(0, 2**63 - 1),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=40)
@given(Samples)
def test_what_a_generator_writes_the_parser_reads(
    tmp_path_factory: pytest.TempPathFactory, samples: list[Any]
) -> None:
    generator = MultiSlotDataGenerator()
    path = tmp_path_factory.mktemp("lines") / "part"
    path.write_text(
        "".join(
            generator._gen_str([("click", [click]), ("price", [price]), ("ads", ads)])
            for click, price, ads in samples
        )
    )
    (batch,) = Reader(path, FORMAT, 100)
    assert batch["click"].tolist() == [click for click, _, _ in samples]
    assert batch["price"].tolist() == [price for _, price, _ in samples]
    assert batch["ads"][0].tolist() == [ad for _, _, ads in samples for ad in ads]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write a generator as a command whose process finds this package."""
    package = Path(sparsefleet.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", str(package))
    path = tmp_path / "clicks.py"
    path.write_text(SCRIPT)
    return [sys.executable, str(path)]


def test_a_generator_is_a_pipe_command_of_a_reader(tmp_path: Path, script: list[str]) -> None:
    (tmp_path / "raw-0").write_text("1,0.5,17,18\nskip,,\n0,0.25,99\n")
    (tmp_path / "raw-1").write_text("1,2,5\n")
    reader = Reader(tmp_path / "raw-*", FORMAT, 10, config=ReaderConfig(pipe_command=script))
    (batch,) = reader
    assert batch["click"].tolist() == [1, 0, 1]
    assert batch["price"].tolist() == [0.5, 0.25, 2.0]
    assert batch["ads"][0].tolist() == [17, 18, 99, 5]


def test_an_error_of_a_generator_is_that_of_the_command(tmp_path: Path, script: list[str]) -> None:
    (tmp_path / "raw").write_text("1,0.5,17\n1,0.5\n")
    reader = Reader(tmp_path / "raw", FORMAT, 10, config=ReaderConfig(pipe_command=script))
    with pytest.raises(PipeCommandError, match="slot 'ads' has no values, expected at least one"):
        list(reader)


def test_generators_load_without_torch() -> None:
    code = (
        "import sys, sparsefleet.fluid.incubate.data_generator; "
        "from sparsefleet.fluid.incubate import data_generator; "
        "sys.exit('torch' in sys.modules)"
    )
    package = str(Path(sparsefleet.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=120, env={"PYTHONPATH": package}
    )
