from __future__ import annotations

import threading

import pytest

from sparsefleet.data.progress import FileToRead, missing_spans
from sparsefleet.data.reader_pass import FileCursor, PartCursor
from sparsefleet.data.record_source import FilePart

FILES = [FileToRead("a"), FileToRead("b"), FileToRead("c")]


def three_parts(file: FileToRead) -> list[FilePart]:
    return [FilePart(file.path, begin, begin + 5) for begin in (0, 5, 10)]


def test_parts_come_once_and_in_order() -> None:
    cursor = PartCursor(FileCursor(FILES), three_parts, lambda: False)
    parts = []
    while (part := cursor.take()) is not None:
        parts.append((part.path, part.begin))
    assert parts == [(path, begin) for path in "abc" for begin in (0, 5, 10)]
    assert cursor.take() is None


def test_others_wait_while_the_last_file_is_split_and_share_its_parts() -> None:
    splitting, go_on = threading.Event(), threading.Event()

    def slow(file: FileToRead) -> list[FilePart]:
        splitting.set()
        assert go_on.wait(60)
        return three_parts(file)

    cursor = PartCursor(FileCursor(FILES[:1]), slow, lambda: False)
    taken: list[list[FilePart | None]] = [[], []]
    threads = [
        threading.Thread(target=lambda mine=mine: mine.append(cursor.take())) for mine in taken
    ]
    threads[0].start()
    assert splitting.wait(60)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    parts = [part.begin for mine in taken for part in mine if part is not None]
    assert sorted(parts) == [0, 5]


def test_a_file_that_cannot_be_split_leaves_the_others_to_be_read() -> None:
    def split(file: FileToRead) -> list[FilePart]:
        if file.path == "a":
            raise OSError("damaged")
        return [FilePart(file.path)]

    cursor = PartCursor(FileCursor(FILES), split, lambda: False)
    with pytest.raises(OSError, match="damaged"):
        cursor.take()
    assert [cursor.take(), cursor.take(), cursor.take()] == [FilePart("b"), FilePart("c"), None]


def test_a_pass_that_has_stopped_hands_out_nothing() -> None:
    assert PartCursor(FileCursor(FILES), three_parts, lambda: True).take() is None


@pytest.mark.parametrize(
    ("done", "missing"),
    [
        ((), [(10, 20)]),
        (((0, 10),), [(10, 20)]),
        (((0, 12), (15, 17)), [(12, 15), (17, 20)]),
        (((0, 5), (18, 30)), [(10, 18)]),
        (((0, 30),), []),
        (((25, 30),), [(10, 20)]),
    ],
)
def test_missing_spans_are_what_is_not_done(
    done: tuple[tuple[int, int], ...], missing: list[tuple[int, int]]
) -> None:
    assert missing_spans(done, 10, 20) == missing
