"""A Dataset's configuration as Fluid writes it: protobuf's text form of DataFeedDesc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsefleet.data import Slot

__all__ = ["DataFeedDesc"]


@dataclass(kw_only=True, slots=True)
class DataFeedDesc:
    """What readers are made of.

    >>> desc = DataFeedDesc(name="MultiSlotDataFeed")
    >>> print(desc.text([Slot("ads")]))
    name: "MultiSlotDataFeed"
    batch_size: 32
    multi_slot_desc {
      slots {
        name: "ads"
        type: "uint64"
        is_dense: false
        is_used: true
      }
    }
    pipe_command: "cat"
    thread_num: 1
    """

    name: str
    batch_size: int = 32
    pipe_command: str = "cat"
    thread_num: int = 1
    rank_offset: str | None = None
    pv_batch_size: int | None = None

    def text(self, slots: Sequence[Slot]) -> str:
        """All of it; `slots` in the order of the files."""
        lines = [f"name: {_quoted(self.name)}", f"batch_size: {self.batch_size}"]
        if slots:
            lines += ["multi_slot_desc {", *(line for slot in slots for line in _slot(slot)), "}"]
        lines += [f"pipe_command: {_quoted(self.pipe_command)}", f"thread_num: {self.thread_num}"]
        if self.rank_offset is not None:
            lines.append(f"rank_offset: {_quoted(self.rank_offset)}")
        if self.pv_batch_size is not None:
            lines.append(f"pv_batch_size: {self.pv_batch_size}")
        return "\n".join(lines)


def _slot(slot: Slot) -> list[str]:
    fields = [
        f"name: {_quoted(slot.name)}",
        f"type: {_quoted(slot.dtype)}",
        f"is_dense: {'false' if slot.shape is None else 'true'}",
        "is_used: true",
    ]
    if slot.shape is not None:
        fields += [f"shape: {size}" for size in (-1, *slot.shape)]
    return ["  slots {", *(f"    {field}" for field in fields), "  }"]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
