"""Calls to the rendezvous store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from sparsefleet.collective.rendezvous import AnsweringStore


class MuteStore:
    """Accepts calls and never answers, until it is released."""

    def __init__(self) -> None:
        self.calls = 0
        self.let_go = threading.Event()

    def check(self, keys: list[str]) -> bool:
        self.calls += len(keys)
        self.let_go.wait()
        return True


@pytest.fixture
def mute() -> Iterator[Any]:
    store = MuteStore()
    yield store
    store.let_go.set()


def test_values_are_put_found_and_deleted() -> None:
    store = AnsweringStore(dist.HashStore())
    store.set("text", "3")
    store.set("bytes", b"\x00\x01")
    assert store.get("text") == b"3"
    assert store.get("bytes") == b"\x00\x01"
    assert store.check(["text", "bytes"])
    assert store.delete_key("text")
    assert not store.check(["text"])
    store.close()


def test_a_call_without_an_answer_ends_and_later_ones_are_not_made(mute: Any) -> None:
    store = AnsweringStore(mute, answer_s=0.01)
    for _ in range(2):
        with pytest.raises(dist.DistNetworkError, match="did not answer within 0.01 s"):
            store.check(["key"])
    assert mute.calls == 1


def test_what_the_store_raises_reaches_the_caller() -> None:
    plain = dist.HashStore()
    plain.set_timeout(timedelta(milliseconds=1))
    store = AnsweringStore(plain)
    with pytest.raises(dist.DistStoreError):
        store.get("nobody set it")
    assert not store.check(["nobody set it"])  # it still answers
    store.close()
