"""The figures of a day, collected over one or several runs, as JSON next to the report."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from measure import ROOT, machine

FORMAT = 1
SKIPPED = "skipped"
PACKAGES = ("sparsefleet", "torch", "numpy", "pyarrow", "gensim", "onnxruntime")


class DayRecord:
    """Parts by name, each with its figures and with when, where and how they were measured.

    A part that is run again replaces its old entry; the others stay.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts: dict[str, dict[str, Any]] = {}
        if path.exists():
            held = json.loads(path.read_text(encoding="utf-8"))
            if held.get("format") != FORMAT:
                raise ValueError(f"{path} has format {held.get('format')}, not {FORMAT}: remove it")
            self.parts = held["parts"]

    @property
    def day(self) -> str:
        return self.path.stem

    def put(self, name: str, entry: dict[str, Any]) -> None:
        """Write to disk at once: a run may be stopped at any time."""
        self.parts[name] = entry
        self.path.parent.mkdir(parents=True, exist_ok=True)
        half = self.path.with_suffix(".json.new")
        held = {"format": FORMAT, "parts": self.parts}
        half.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
        half.replace(self.path)

    def figures(self, name: str) -> dict[str, Any] | None:
        """Return the figures of a part; None if it was not run or failed."""
        entry = self.parts.get(name)
        return entry["figures"] if entry and not entry["error"] else None

    def has_failed(self, name: str) -> bool:
        """Whether a part failed; one whose script does not exist was skipped, which is not a
        failure.
        """
        error = self.parts.get(name, {}).get("error")
        return bool(error) and not error.startswith(SKIPPED)


def circumstances() -> dict[str, Any]:
    """Return what a reader needs to know about a part's figures."""
    return {
        "when": time.strftime("%Y-%m-%d %H:%M %Z"),
        "commit": _commit(),
        "machine": machine(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "versions": _versions(),
        "load": round(os.getloadavg()[0], 2),
    }


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    # OpenSSL 3.5 encrypts four times as fast as 3.0 on newer processors.
    with contextlib.suppress(OSError):
        crypto = ctypes.CDLL("libcrypto.so.3")  # which the extension loads, too; Python has its own
        crypto.OpenSSL_version.restype = ctypes.c_char_p
        found["OpenSSL"] = crypto.OpenSSL_version(0).decode().split()[1]
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Return the commit, with a + if files differ from it; empty outside a checkout."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "core", "bench")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except OSError:
        return ""
