from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests.unit.data.data_files import ONE_ID, lines_of, read_ids, write_ids

from sparsefleet.data import MultiSlot, Reader, ReaderConfig, Slot
from sparsefleet.data.batch_queue import BatchQueue
from sparsefleet.errors import BadLineError, DataError, InputFileError, InputMissingError


def test_the_first_bad_line_stops_with_its_place_and_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "part-0"
    path.write_text("1 5 2 0.5 1\n1 6 2 0.5 x\n1 7 2 0 0\n")
    reader = Reader(path, MultiSlot(Slot("ads"), Slot("dense", "float", (2,))), 1)
    batches = iter(reader)
    assert next(batches)["ads"][0].tolist() == [5]
    with pytest.raises(BadLineError) as caught:
        next(batches)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 2, column 11: expected ")
    assert "in slot 'dense' (2 of 2) a decimal number (value 2 of 2), found 'x'" in message
    assert "max_bad_lines" in message
    assert list(batches) == []
    assert reader.stats().bad_lines == 1


def test_bad_lines_within_the_limit_are_skipped_counted_and_put_aside(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1 1\nnonsense\n1 2\n1 -3\n")
    (tmp_path / "b").write_bytes(b"1 4\n\xff\xfe\n")
    config = ReaderConfig(max_bad_lines=3, quarantine=tmp_path / "bad.tsv")
    reader = Reader([tmp_path / "a", tmp_path / "b"], ONE_ID, 2, config=config)
    for passes in (1, 2):
        assert read_ids(reader) == [1, 2, 4]
        assert reader.stats().bad_lines == 3 * passes
        rows = [row.split(b"\t") for row in (tmp_path / "bad.tsv").read_bytes().splitlines()]
        assert [(Path(row[0].decode()).name, row[1], row[2]) for row in rows] == [
            ("a", b"2", b"1"),
            ("a", b"4", b"3"),
            ("b", b"2", b"1"),
        ]
        assert [row[4] for row in rows] == [b"nonsense", b"1 -3", b"\xff\xfe"]


def test_one_bad_line_over_the_limit_is_an_error_that_says_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n" * 3 + "1 1\n")
    config = ReaderConfig(max_bad_lines=2, quarantine=tmp_path / "bad.tsv")
    with pytest.raises(BadLineError, match="line 3, .*max_bad_lines allows 2"):
        list(Reader(tmp_path / "a", ONE_ID, 2, config=config))
    assert (tmp_path / "bad.tsv").read_bytes().count(b"\n") == 3


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("1 18446744073709551616", "at most 2\\^64 - 1"),
        ("1", "found the end of the line"),
        ("", "a count of values >= 1"),
        ("0", "may not be empty"),
        ("1 5 1 6", "the end of the line after 1 slots"),
    ],
)
def test_lines_that_are_short_long_or_too_large_are_errors(
    tmp_path: Path, line: str, part: str
) -> None:
    (tmp_path / "a").write_text(line + "\n")
    with pytest.raises(BadLineError, match=part):
        list(Reader(tmp_path / "a", ONE_ID, 2))


def test_a_file_without_line_ends_is_one_bad_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1" * 100_000)
    config = ReaderConfig(max_line_bytes=1000, block_bytes=512)
    with pytest.raises(BadLineError, match="expected a line of at most 1000 bytes"):
        list(Reader(tmp_path / "a", ONE_ID, 2, config=config))


def test_a_file_that_went_away_or_is_cut_off_is_an_error_after_what_was_whole(
    tmp_path: Path,
) -> None:
    write_ids(tmp_path / "a", [1, 2])
    reader = Reader([tmp_path / "a", write_ids(tmp_path / "b", [3])], ONE_ID, 2)
    (tmp_path / "b").unlink()
    batches = iter(reader)
    assert next(batches)["id"].tolist() == [1, 2]
    with pytest.raises(InputMissingError, match="b: no such file"):
        next(batches)
    packed = gzip.compress(lines_of(range(1000)).encode())
    (tmp_path / "c.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputFileError, match="c.gz: the gzip data ends too early"):
        list(Reader(tmp_path / "c.gz", ONE_ID, 10))


def test_files_without_a_single_record_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(InputFileError, match=r"no records in 1 file\(s\)"):
        list(Reader(tmp_path / "a", ONE_ID, 2))


def test_a_quarantine_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n")
    config = ReaderConfig(max_bad_lines=1, quarantine=tmp_path / "nowhere" / "bad.tsv")
    with pytest.raises(InputFileError, match="cannot write bad lines to this file"):
        list(Reader(tmp_path / "a", ONE_ID, 2, config=config))


def test_a_batch_that_never_comes_is_an_error_that_names_the_setting() -> None:
    queue: BatchQueue[int] = BatchQueue(capacity=1, num_producers=1)
    with pytest.raises(DataError, match=r"within 0.01 s \(ReaderConfig.wait_s\)"):
        queue.take(wait_s=0.01)
