"""Starts the processes of a side of bench/ctr_dnn.py, or of another script with such sides."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr_batches import NUM_COUNTS, NUM_SLOTS
from ctr_names import DENSE, GENSIM, OURS, PADDLE, PRODUCTS, TORCH
from side_processes import HERE, Node, Side, SideProcess, start_replica, start_servers

JOB_KEY = os.urandom(32).hex()
PROGRAM = Path(__file__).resolve().parent / "ctr_sides.py"
PADDLE_PROGRAM = PROGRAM.with_name("paddle_ctr.py")
DELAY_PROGRAM = PROGRAM.with_name("delaying_proxy.py")
FILE_READY_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SideSpec:
    """The engine of a side, and its number of processes and threads."""

    engine: str
    """OURS, PADDLE, TORCH (with several workers DDP), GENSIM, or a bound: PRODUCTS, DENSE."""
    mode: str = "local"
    """The mode of a training on servers."""
    servers: int = 0
    workers: int = 1
    threads: int = 1
    """Threads per worker."""
    from_files: bool = False
    """Read MultiSlot files instead of training from memory."""
    transport: str | None = None
    """Between workers and servers; None: our default."""
    wire_dtype: str | None = None
    """The numbers between them on the network; None: our default."""
    durability: str | None = None
    """Durability of the servers; None: their default."""
    is_proxied: bool = False
    """Pass all traffic to and from servers through a proxy that can delay it."""

    @property
    def name(self) -> str:
        """A short name, the same in every run."""
        if self.engine in (PRODUCTS, DENSE):
            return f"{self.engine} {self.workers}x{self.threads}"
        if self.engine == GENSIM:
            return f"{GENSIM} {self.threads}"
        how = self.mode
        if self.servers:
            how += f" {self.servers}x{self.workers}"
        elif self.engine == TORCH and self.workers > 1:
            how = f"DDP {self.workers}"
        else:
            how += f" {self.threads}"
        how += f", {self.transport}" if self.transport else ""
        how += f", {self.wire_dtype}" if self.wire_dtype else ""
        how += f", {self.durability}" if self.durability else ""
        return f"{self.engine} {how}{', files' if self.from_files else ''}"


def fleet(mode: str, engine: str = OURS, **changes: Any) -> SideSpec:
    """A side with two servers and two workers, unless told otherwise."""
    return SideSpec(engine=engine, mode=mode, **{"servers": 2, "workers": 2, **changes})


@dataclass(kw_only=True, slots=True)
class StartedSide:
    """A running side, and how long it took to start."""

    spec: SideSpec
    side: Side
    startup_s: float
    """From the start of the first process until every worker is ready."""
    proxy: SideProcess | None = None

    def delay(self, seconds: float) -> None:
        """Set the delay from now on, each way."""
        assert self.proxy is not None
        self.proxy.send(str(seconds))
        self.proxy.wait_for("^delayed$", FILE_READY_S)


@dataclass(kw_only=True, slots=True)
class Sources:
    """The training data of the sides, and where they write their output."""

    folder: Path
    program: Path = PROGRAM
    """The program of a worker, except Paddle's."""
    paddle_program: Path = PADDLE_PROGRAM
    files: Sequence[Path] = ()
    """MultiSlot files, at least as many as workers and threads."""
    paddle_files: Sequence[Path] = ()
    """Paddle's files; it reads them even to train from memory."""
    data: Path | None = None
    """An .npz file for sides that train from memory; without it, data is generated."""
    lr: float | None = None
    """The learning rate; None: the same default for all sides."""
    row_lr: float | None = None
    """The learning rate of CTR-DNN's rows; None: the same as that of its layers."""
    inputs: tuple[int, int] = (NUM_COUNTS, NUM_SLOTS)
    """The numbers of counts and of slots of CTR-DNN's examples."""
    paddle: Path | None = None
    """Paddle's Python; None if there is none."""
    paddle_missing: str = "PaddlePaddle was not asked for"
    """Why there is none."""
    nodes: Sequence[Node] = ()
    """Where to run sparsefleet's servers and its workers, or one rank of DDP each; empty: here."""

    def log(self, name: str) -> Path:
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        return logs / f"{name.replace(' ', '-').replace(',', '')}.log"


def start(spec: SideSpec, sources: Sources) -> StartedSide:
    """Start the side and wait until it is ready; errors include its last output."""
    begun = time.monotonic()
    proxy = None
    if spec.engine == GENSIM and importlib.util.find_spec(GENSIM) is None:
        raise RuntimeError("skipped: pip install gensim")
    if spec.engine == PADDLE:
        side = _start_paddle(spec, sources)
    elif spec.servers:
        side, proxy = _start_fleet(spec, sources)
    else:
        side = Side(_start_workers(spec, sources, [{}] * spec.workers))
    try:
        side.wait_ready()
    except BaseException:
        side.close()
        raise
    return StartedSide(spec=spec, side=side, startup_s=time.monotonic() - begun, proxy=proxy)


def _start_workers(
    spec: SideSpec, sources: Sources, environs: Sequence[Mapping[str, str]]
) -> list[SideProcess]:
    kind = "ours" if spec.engine == OURS else spec.engine
    words = [sys.executable, str(sources.program), kind, "--threads", str(spec.threads)]
    words += ["--processes", str(spec.workers)]
    if spec.engine == OURS:
        words += ["--mode", spec.mode]
    if sources.lr is not None:
        words += ["--lr", str(sources.lr)]
    if sources.row_lr is not None:
        words += ["--row-lr", str(sources.row_lr)]
    if sources.data is not None:
        words += ["--data", str(sources.data)]
    if spec.engine == TORCH and spec.workers > 1:
        words += ["--meeting", str(sources.folder / f"meeting-{os.urandom(4).hex()}")]
    made = []
    for rank, environ in enumerate(environs):
        own = ["--rank", str(rank)]
        if spec.from_files:
            own += ["--files", *map(str, sources.files[rank :: spec.workers])]
        prefix: tuple[str, ...] = ()
        if sources.nodes:
            node = sources.nodes[-1 if spec.servers else rank]
            prefix, environ = node.prefix, {**environ, "GLOO_SOCKET_IFNAME": node.device}
        log = sources.log(f"{spec.name} {rank}")
        made.append(SideProcess([*prefix, *words, *own], environ, log=log))
    return made


def _start_fleet(spec: SideSpec, sources: Sources) -> tuple[Side, SideProcess | None]:
    flags: list[list[str]] = [[]] * spec.servers
    replicas: list[SideProcess] = []
    if spec.durability not in (None, "off"):
        place = tempfile.mkdtemp(dir=sources.folder)
        more = []
        if spec.durability == "replica":
            one, endpoint = start_replica(f"{place}/replica", JOB_KEY)
            replicas.append(one)
            more = ["--replica", endpoint]
        flags = [
            ["--durability", str(spec.durability), "--log-dir", f"{place}/{index}", *more]
            for index in range(spec.servers)
        ]
    node = sources.nodes[0] if sources.nodes else HERE
    servers, endpoints = start_servers(spec.servers, spec.transport, JOB_KEY, flags, node)
    own_endpoints = endpoints
    servers += replicas  # their time and memory count as the servers'
    proxy = None
    if spec.is_proxied:
        proxy = SideProcess([sys.executable, str(DELAY_PROGRAM), *endpoints], {})
        endpoints = proxy.wait_for("^ready (.*)$", FILE_READY_S)[1].split()
    environs = [
        {
            "SPARSEFLEET_JOB_KEY": JOB_KEY,
            "SPARSEFLEET_ROLE": "worker",
            "SPARSEFLEET_INDEX": str(rank),
            "SPARSEFLEET_SERVERS": ",".join(endpoints),
            "SPARSEFLEET_WORKERS": str(spec.workers),
            **({"SPARSEFLEET_TRANSPORT": spec.transport} if spec.transport else {}),
            **({"SPARSEFLEET_WIRE_DTYPE": spec.wire_dtype} if spec.wire_dtype else {}),
        }
        for rank in range(spec.workers)
    ]
    others = [] if proxy is None else [proxy]
    workers = _start_workers(spec, sources, environs)
    return Side(workers, servers, others, endpoints=own_endpoints), proxy


def _start_paddle(spec: SideSpec, sources: Sources) -> Side:
    if sources.paddle is None:
        raise RuntimeError(sources.paddle_missing)
    words = [str(sources.paddle), str(sources.paddle_program), spec.mode]
    words += ["--threads", str(spec.threads), "--source", "files" if spec.from_files else "memory"]
    if sources.lr is not None:
        words += ["--lr", str(sources.lr)]
    if sources.row_lr is not None:
        words += ["--row-lr", str(sources.row_lr)]
    words += ["--inputs", *map(str, sources.inputs)]
    environ = {"CPU_NUM": str(spec.threads), "GLOG_v": "0", "PYTHONUNBUFFERED": "1"}
    environ |= {"http_proxy": "", "https_proxy": ""}  # otherwise its gRPC would use them
    ports = _free_ports(spec.servers)
    if spec.servers:
        environ["PADDLE_PSERVERS_IP_PORT_LIST"] = ",".join(f"127.0.0.1:{port}" for port in ports)
        environ["PADDLE_TRAINERS_NUM"] = str(spec.workers)
        environ["POD_IP"] = "127.0.0.1"
    folder = Path(tempfile.mkdtemp(dir=sources.folder))  # it leaves files behind
    servers, workers = [], []
    for index, port in enumerate(ports):
        own = {"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": str(port), **environ}
        log = sources.log(f"{spec.name} server {index}")
        servers.append(SideProcess(words, own, folder, log))
    for rank in range(spec.workers):
        own = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(rank), **environ}
        files = ["--files", *map(str, sources.paddle_files[rank :: spec.workers])]
        log = sources.log(f"{spec.name} {rank}")
        workers.append(SideProcess([*words, *files], own, folder, log))
    return Side(workers, servers, is_restless=True)


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
