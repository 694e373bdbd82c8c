"""A job of real processes that is monitored by metrics, dashboard and `sparsefleet top`."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import threading
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.launch_process import LaunchProcess, wait_until

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.monitor import parse
from sparsefleet.monitor.reading import Reading

SCRIPT = Path(__file__).parents[1] / "process" / "monitored_script.py"
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class MonitoredJob:
    """Servers and workers that train until a file `stop` appears, with all monitoring enabled.

    script: run by every worker, with `words` as its arguments.
    """

    def __init__(
        self,
        directory: Path,
        *words: str,
        script: Path = SCRIPT,
        workers: int = 2,
        durability: str = "process",
    ) -> None:
        self.directory = directory
        self.num_workers = workers
        shutil.copy(script, directory / "train.py")
        self.launcher = LaunchProcess(
            directory, "--servers", "2", "--workers", str(workers), "--metrics", "127.0.0.1:0",
            "--dashboard", "--log-dir", "logs", "--durability", durability, "--native-servers",
            "train.py", *words,
        )  # fmt: skip
        wait_until(self.is_training, "all workers train")

    def is_training(self) -> bool:
        reading = self.reading()
        steps = reading.by("sparsefleet_worker_steps_total", "index")
        up = reading.by("sparsefleet_job_process_up", "index")
        is_up = sum(up.values()) == 2 + self.num_workers
        return is_up and len(steps) == self.num_workers and min(steps.values()) > 20

    def address(self) -> str:
        for line in self.launcher.output().splitlines():
            if "metrics of the job at http://" in line:
                return line.rpartition("http://")[2].removesuffix("/metrics")
        return ""

    def reading(self) -> Reading:
        """Return what the launcher has gathered; nothing before it listens."""
        assert self.launcher.process.poll() is None, self.launcher.output()
        if not self.address():
            return Reading([])
        where = parse_endpoint(self.address())
        connection = http.client.HTTPConnection(where.host, where.port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return Reading(parse(text))

    def page(self) -> str:
        return (self.directory / "logs" / "metrics" / "dashboard.url").read_text().strip()

    def view(self) -> dict[str, Any]:
        """Return what the dashboard shows."""
        with urllib.request.urlopen(self.page().replace("/?", "/job.json?"), timeout=60) as answer:
            shown: dict[str, Any] = json.load(answer)
        return shown

    def diagnoses(self) -> set[tuple[str, str]]:
        """Return rule and subject of each finding in the launcher's metrics."""
        found = [
            dict(each.labels)
            for each in self.reading().samples()
            if each.name == "sparsefleet_job_diagnosis"
        ]
        return {(labels["rule"], labels["subject"]) for labels in found}

    def pid(self, name: str) -> int:
        job = json.loads((self.directory / "logs" / "metrics" / "job.json").read_text())
        role, index = name.split()
        return next(
            int(each["pid"])
            for each in job["processes"]
            if (each["role"], each["index"]) == (role, int(index))
        )

    def top(self) -> str:
        command = [sys.executable, "-m", "sparsefleet", "top", "--once", "--interval", "1"]
        done = subprocess.run(
            [*command, "--job", "logs"], cwd=self.directory, capture_output=True, timeout=240
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def stop(self) -> int:
        (self.directory / "stop").touch()
        return self.launcher.wait()


class LiveTop:
    """Runs `sparsefleet top` in a separate terminal, as over ssh."""

    def __init__(self, directory: Path) -> None:
        self._terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sparsefleet", "top", "--job", "logs"],
            cwd=directory,
            env={**os.environ, "TERM": "xterm-256color"},
            stdin=inside,
            stdout=inside,
            stderr=inside,
        )
        os.close(inside)
        self._text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is closed when top ends
            while piece := os.read(self._terminal, 65536):
                self._text = (self._text + piece.decode(errors="replace"))[-400_000:]

    def shows(self, words: str) -> bool:
        """Return whether any screen so far has these words; lines may break between them."""
        assert self._process.poll() is None, self._text[-2000:]
        return words in " ".join(_CONTROL.sub(" ", self._text).split())

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._reader.join(60)
        os.close(self._terminal)
