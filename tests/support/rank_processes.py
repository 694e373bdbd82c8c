"""Rank processes for tests, forked from one that has imported torch, so that they start quickly.

A test module names functions ``work(world, *arguments)``; every call of ``RankProcesses.run`` runs
one of them in fresh processes and a fresh process group. All tests can use the fixture ``ranks``::

    def scaled_rank(world: World, scale: float) -> float:
        return world.rank * scale

    def test_scaled_rank(ranks: RankProcesses) -> None:
        assert ranks.run(scaled_rank, 2, 10.0) == [0.0, 10.0]

Arguments and results travel as JSON: numbers, texts, lists, dicts. A float32 survives exactly.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
JOIN_S = 30.0
AFTER_FAILURE_S = 5.0
"""How long the other ranks may take once one has failed."""


class RankProcesses:
    """A process that forks ranks on demand; ``with`` ends it.

    preload: modules that ranks need, imported once, before the first fork. The module of the
    work is, too.
    """

    def __init__(self, *preload: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._runs = 0
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.rank_processes", *preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(240)  # on a loaded machine
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._folder.cleanup()

    def run(
        self,
        work: Callable[..., Any],
        size: int,
        *arguments: Any,
        ranks_per_node: int | None = None,
        environment: dict[str, str] | None = None,
        lost: tuple[int, ...] = (),
        bare: bool = False,
        timeout_s: float = 60.0,
    ) -> list[Any]:
        """Return what ``work(world, *arguments)`` returned, by rank.

        Ranks in ``lost`` may end without a result (None), like killed ones. With ``bare``,
        the function is called as ``work(rank, size, path, *arguments)`` without a World; the path
        is that of a fresh file for a FileStore.

        Raises:
            AssertionError: with the tracebacks of all ranks that failed or had to be killed.
        """
        self._runs += 1
        folder = Path(self._folder.name) / str(self._runs)
        folder.mkdir()
        order = {
            "module": work.__module__,
            "function": work.__qualname__,
            "size": size,
            "arguments": arguments,
            "ranks_per_node": size if ranks_per_node is None else ranks_per_node,
            "environment": environment or {},
            "bare": bare,
            "lost": lost,
            "folder": str(folder),
            "timeout_s": timeout_s,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline(), "the process that forks ranks has ended"
        results = [_read_result(folder, rank) for rank in range(size)]
        failed = [
            f"rank {rank} {result['error']}"
            for rank, result in enumerate(results)
            if "error" in result and rank not in lost
        ]
        assert not failed, "\n".join(failed)
        return [result.get("value") for result in results]


def _read_result(folder: Path, rank: int) -> dict[str, Any]:
    path = folder / f"{rank}.json"
    if not path.exists():
        return {"error": "ended without a result, or was ended as it took too long"}
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def _fork_ranks() -> None:
    """Execute one command per line until stdin ends."""
    for line in sys.stdin:
        order = json.loads(line)
        with contextlib.suppress(Exception):  # each rank would repeat it
            importlib.import_module(order["module"])
        pids = {}
        for rank in range(order["size"]):
            pid = os.fork()
            if pid == 0:
                _be_rank(rank, order)
            pids[rank] = pid
        _wait_for(pids, order["lost"], order["timeout_s"])
        print("done", flush=True)


def _be_rank(rank: int, order: dict[str, Any]) -> None:
    """Never returns: the process ends with the work."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # stdout is for the answers
    os.environ.update(order["environment"])
    try:
        result = {"value": _work(rank, order)}
    except BaseException:  # the edge of the process: reported to the test
        result = {"error": traceback.format_exc()}
    path = Path(order["folder"]) / f"{rank}.json"
    path.with_suffix(".tmp").write_text(json.dumps(result), encoding="utf-8")
    path.with_suffix(".tmp").rename(path)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if "error" in result else 0)


def _work(rank: int, order: dict[str, Any]) -> Any:
    module = importlib.import_module(order["module"])
    function = getattr(module, order["function"])
    path = os.path.join(order["folder"], "store")
    if order["bare"]:
        return function(rank, order["size"], path, *order["arguments"])
    import torch.distributed as dist

    from sparsefleet.collective import World

    world = World.join(
        rank=rank,
        size=order["size"],
        ranks_per_node=order["ranks_per_node"],
        meeting_point=dist.FileStore(path, order["size"]),
        timeout_s=JOIN_S,
    )
    try:
        return function(world, *order["arguments"])
    finally:
        world.close()


def _wait_for(pids: dict[int, int], lost: list[int], timeout_s: float) -> None:
    """Wait until all have ended; kill those that take too long, or outlive a failed one. Ranks that
    are to be lost are not waited for, and do not count as failed.
    """
    deadline = time.monotonic() + timeout_s
    may_fail = {pids[rank] for rank in lost}
    left = set(pids.values())
    while left:
        for pid in sorted(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                left.discard(pid)
                if status and pid not in may_fail:
                    deadline = min(deadline, time.monotonic() + AFTER_FAILURE_S)
        if left and (left <= may_fail or time.monotonic() > deadline):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.002)


if __name__ == "__main__":
    # Before the first fork, so that no rank pays for it. Optimizers import the one before the last
    # when they are made.
    always = ("pytest", "torch.distributed", "torch._dynamo", "sparsefleet.collective")
    for name in (*always, *sys.argv[1:]):
        importlib.import_module(name)
    _fork_ranks()
