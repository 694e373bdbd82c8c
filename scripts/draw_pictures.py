"""Draw the pictures of the documentation: the architecture, and a step as a time line per mode.

`python scripts/draw_pictures.py` writes docs/images/architecture.svg and docs/images/steps.svg; a
test checks that they are what this draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
INK, PALE, PAPER, LINE = "#1f2933", "#5b6875", "#ffffff", "#9aa5b1"
COLORS = {
    "data": "#c3cbd4",
    "pull": "#7fb3e6",
    "compute": "#8fce9b",
    "push": "#f2b36b",
    "wait": "#f0f2f5",
    "apply": "#d59ad6",
}


class Box(NamedTuple):
    """A labelled box of the architecture."""

    x: float
    y: float
    width: float
    height: float
    title: str
    lines: Sequence[str]
    fill: str


class Span(NamedTuple):
    """A stretch of time in one lane of a time line."""

    lane: int
    begin: float
    length: float
    kind: str


def text(x: float, y: float, words: str, *, size: int = 13, fill: str = INK, bold: bool = False,
         anchor: str = "start") -> str:  # fmt: skip
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"'
        f"{weight}>{escape(words)}</text>"
    )


def rectangle(
    x: float, y: float, width: float, height: float, fill: str, *, edge: str = LINE
) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" '
        f'stroke="{edge}"/>'
    )


def arrow(
    x1: float, y1: float, x2: float, y2: float, words: str = "", *, both: bool = False
) -> str:
    start = ' marker-start="url(#tip)"' if both else ""
    drawn = (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{INK}" stroke-width="1.4" '
        f'marker-end="url(#tip)"{start}/>'
    )
    if not words:
        return drawn
    return drawn + text(
        (x1 + x2) / 2, (y1 + y2) / 2 - 7, words, size=12, fill=PALE, anchor="middle"
    )


def picture(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """Return an SVG document; it has its own background, for dark pages."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="{escape(title)}" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif">'
    )
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/>'
        "</marker></defs>"
    )
    background = f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{PAPER}"/>'
    return (
        "\n".join([head, f"<title>{escape(title)}</title>", tip, background, *parts, "</svg>"])
        + "\n"
    )


def architecture() -> str:
    """Return the picture of the processes of a job and what flows between them."""
    boxes = [
        Box(20, 20, 250, 62, "Data", ["files, Arrow, Python generators"], COLORS["data"]),
        Box(20, 120, 250, 178, "Worker, one of many", [
            "your torch module or Fluid program",
            "engine: threads, batches, steps",
            "mode: who waits for whom",
            "store: keys split by hash",
        ], "#e4f3e7"),
        Box(470, 120, 250, 178, "Server, one of many", [
            "rows of its share of all ids",
            "optimizer state beside each row",
            "update rules, native threads",
            "log: survives kill -9",
        ], "#e3eefa"),
        Box(470, 345, 250, 78, "Checkpoints", [
            "Parquet and safetensors; load on",
            "any number of servers",
        ], "#f6e9f6"),
        Box(20, 345, 250, 78, "Launcher", [
            "starts and restarts processes;",
            "metrics, dashboard",
        ], "#f0f2f5"),
        Box(800, 120, 190, 178, "Online", [
            "export: graph, rows,",
            "golden examples",
            "service over HTTP",
            "rows in files or Redis",
            "verify",
        ], "#fdf0df"),
    ]  # fmt: skip
    parts = []
    for box in boxes:
        parts.append(rectangle(box.x, box.y, box.width, box.height, box.fill))
        parts.append(text(box.x + 14, box.y + 25, box.title, size=15, bold=True))
        parts += [
            text(box.x + 14, box.y + 48 + 21 * number, line, fill=PALE)
            for number, line in enumerate(box.lines)
        ]
    parts += [
        arrow(145, 82, 145, 118, ""),
        arrow(272, 165, 468, 165, "pull: ids"),
        arrow(468, 200, 272, 200, "rows"),
        arrow(272, 235, 468, 235, "push: gradients"),
        text(370, 262, "TLS 1.3, or shared memory", size=12, fill=PALE, anchor="middle"),
        text(370, 279, "on one host", size=12, fill=PALE, anchor="middle"),
        arrow(595, 298, 595, 343),
        arrow(145, 345, 145, 300),
        arrow(722, 209, 798, 209, "export"),
        text(500, 452, "On a laptop the store is in the worker's process: no server, same code.",
             size=12, fill=PALE, anchor="middle"),
    ]  # fmt: skip
    return picture(1010, 470, "Architecture: data, workers, servers, checkpoints, service", parts)


def _steps(lane: int, begin: float, kinds: str) -> list[Span]:
    """Return spans one after the other: "d1 c4 p2" is data 1, compute 4, push 2 units long."""
    names = {"d": "data", "l": "pull", "c": "compute", "p": "push", "w": "wait", "a": "apply"}
    spans = []
    for word in kinds.split():
        length = float(word[1:])
        if word[0] != "_":
            spans.append(Span(lane, begin, length, names[word[0]]))
        begin += length
    return spans


MODES = [
    ("local", "One process: rows are read and updated in place.", ["worker"],
     _steps(0, 0, "d1 l1 c5 p1 d1 l1 c5 p1 d1 l1 c5 p1")),
    ("sync", "All workers take each step together; the reply to a push brings the next rows.",
     ["worker 0", "worker 1", "servers"],
     _steps(0, 0, "d1 c5 p1 w3 d1 c5 p1 w3") + _steps(1, 0, "d1 c7 p1 w1 d1 c7 p1 w1")
     + _steps(2, 0, "_9 a1 _9 a1")),
    ("half_async", "Threads of a worker take each step together; workers do not wait.",
     ["worker 0", "worker 1", "servers"],
     _steps(0, 0, "d1 c5 p2 d1 c5 p2 d1 c5") + _steps(1, 0, "d1 c7 p2 d1 c7 p2 d1")
     + _steps(2, 0, "_7 a1 _2 a1 _4 a1 _3 a1")),
    ("async", "Nobody waits: rows are read ahead, gradients go out in the background.",
     ["worker 0", "  sender", "worker 1", "  sender", "servers"],
     _steps(0, 0, "l1 c5 c5 c5 c4") + _steps(1, 0, "_6 p2 _3 p2 _3 p2")
     + _steps(2, 0, "l1 c7 c7 c5") + _steps(3, 0, "_8 p2 _5 p2")
     + _steps(4, 0, "_7 a1 _1 a1 _2 a1 _3 a1 _1 a1")),
    ("hybrid", "Rows as in async, dense parameters in step as in sync.",
     ["worker 0", "  row sender", "worker 1", "  row sender", "servers"],
     _steps(0, 0, "l1 c5 p1 w3 c5 p1 w2 c2") + _steps(1, 0, "_7 p2 _7 p2")
     + _steps(2, 0, "l1 c7 p1 w1 c6 p1 w1 c2") + _steps(3, 0, "_9 p2 _6 p2")
     + _steps(4, 0, "_8 a1 a1 a1 _4 a1 _1 a1 a1")),
    ("geo", "Workers train on copies and exchange differences now and then.",
     ["worker 0", "worker 1", "servers"],
     _steps(0, 0, "l1 c4 c4 c4 p2 c4 c1") + _steps(1, 0, "l1 c5 c5 c5 p2 c2")
     + _steps(2, 0, "_14 a1 _2 a1")),
    ("collective", "No servers: workers average their gradients with each other.",
     ["worker 0", "worker 1"],
     _steps(0, 0, "d1 c5 w2 p2 d1 c5 p2 d1 c1") + _steps(1, 0, "d1 c7 p2 d1 c5 p2 d1 c1")),
]  # fmt: skip
"""Name, sentence, lanes and spans of each mode. Lengths are made up, the order is not."""


def steps() -> str:
    """Return the time lines of all modes."""
    unit, left, lane_height = 33.0, 110.0, 24.0
    end = 20 * unit
    parts = []
    y = 58.0
    for number, (kind, color) in enumerate(COLORS.items()):
        x = left + number * 118
        words = {"apply": "update", "wait": "wait"}.get(kind, kind)
        parts += [rectangle(x, 18, 16, 16, color), text(x + 22, 31, words, size=12, fill=PALE)]
    for name, sentence, lanes, spans in MODES:
        parts += [text(14, y, name, size=15, bold=True), text(left, y, sentence, fill=PALE)]
        y += 10
        for number, lane in enumerate(lanes):
            top = y + number * lane_height
            parts.append(text(14, top + 16, lane, size=12, fill=PALE))
            parts.append(
                f'<line x1="{left:g}" y1="{top + 12:g}" x2="{left + end:g}" y2="{top + 12:g}" '
                f'stroke="{LINE}" stroke-dasharray="2 4"/>'
            )
        for span in spans:
            width = min(span.length, 20 - span.begin) * unit
            top = y + span.lane * lane_height + 2
            x = left + span.begin * unit
            parts.append(rectangle(x, top, width, lane_height - 6, COLORS[span.kind]))
        y += len(lanes) * lane_height + 30
    parts.append(text(left + end, y - 8, "time", size=12, fill=PALE, anchor="end"))
    return picture(left + end + 20, y, "A step as a time line in each mode", parts)


def pictures() -> dict[str, str]:
    """Return the pictures by file name."""
    return {"architecture.svg": architecture(), "steps.svg": steps()}


if __name__ == "__main__":
    for name, content in pictures().items():
        (IMAGES / name).write_text(content, encoding="utf-8")
