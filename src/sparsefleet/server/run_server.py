"""Runs a server process: listens, announces the port, serves until asked to stop, and drains."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

from sparsefleet import _core
from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_int, require_not_negative, require_positive
from sparsefleet.job_key import find_job_key
from sparsefleet.monitor import PROCESS, report_metrics_if_asked, serve_metrics, server_samples
from sparsefleet.server.command_loop import CommandLoop, CommandStates, Handler, HasSession
from sparsefleet.server.mailbox import Mailboxes
from sparsefleet.server.work_lists import work_list_handlers

if TYPE_CHECKING:
    from types import FrameType

    from typing_extensions import Self

    from sparsefleet.server.table_files import TableFiles

__all__ = [
    "DurabilityName",
    "EndingSignals",
    "ServerConfig",
    "TransportName",
    "await_order",
    "default_handlers",
    "durable_settings",
    "file_handlers",
    "predecessor_config",
    "profile_handlers",
    "run_server",
    "wait_for_the_end",
    "write_log",
]

_COMMANDS = (
    "dense_place",
    "dense_write",
    "files_ready",
    "load_apply",
    "load_begin",
    "load_end",
    "load_wait",
    "save_begin",
    "save_dense",
    "save_end",
    "save_wait",
    "save_write",
    "sees_saves",
)


_MAX_PROFILED = 1_000_000

ChangeInBulk = Callable[[Callable[[], None]], None]
"""Calls a function that changes many rows, and makes the rows durable before returning."""


def file_handlers(
    tables: _core.Store,
    index: int,
    num_servers: int,
    *,
    save_root: str = "",
    change_in_bulk: ChangeInBulk | None = None,
) -> dict[str, Handler]:
    """Return the handlers for the commands that save and load, by name; see `TableFiles`.

    The first such command imports their code, so servers that never save do not load it.
    """
    lock = threading.Lock()
    made: list[TableFiles] = []

    def handle(command: _core.Command) -> None:
        from sparsefleet.server.table_files import TableFiles

        with lock:
            if not made:
                files = TableFiles(
                    tables, index, num_servers, save_root=save_root, change_in_bulk=change_in_bulk
                )
                made.append(files)
        command.reply(made[0].calls()[command.name](command.body))

    return dict.fromkeys(_COMMANDS, handle)


def profile_handlers(server: _core.Server) -> dict[str, Handler]:
    """Return the handlers for the commands that profile a server's requests."""

    def begin(command: _core.Command) -> None:
        server.begin_profile(max(0, min(int(command.body), _MAX_PROFILED)))
        command.reply(b"")

    def take(command: _core.Command) -> None:
        command.reply(json.dumps(server.take_profile()).encode())

    return {"profile_begin": begin, "profile_take": take}


def default_handlers(
    tables: _core.Store,
    index: int,
    num_servers: int,
    *,
    save_root: str = "",
    has_session: HasSession = lambda _: True,
    states: CommandStates | None = None,
    change_in_bulk: ChangeInBulk | None = None,
    drop_clients: Callable[[str], int] = lambda _: 0,
    expect_clients: Callable[[str], int] = lambda _: 0,
) -> dict[str, Handler]:
    """Return all handlers of server ``index`` of ``num_servers``, by command name.

    ``tables`` is this server's part of all tables. Saves and loads are restricted to ``save_root``.
    ``has_session`` returns whether the session of a client is alive; ``drop_clients`` marks the
    clients with a given name as lost because their process has exited; ``expect_clients`` waits
    longer for clients whose process is being restarted. On a durable server, ``states`` records the
    changes that commands make, and loads run in ``change_in_bulk``.
    """
    mailboxes = Mailboxes(has_session=has_session)
    if states is not None:
        states.add("mail.", mailboxes)

    def ping(command: _core.Command) -> None:
        command.reply(json.dumps({"index": index, "num_servers": num_servers}).encode())

    def drop(command: _core.Command) -> None:
        command.reply(json.dumps({"dropped": drop_clients(command.body.decode())}).encode())

    def expect(command: _core.Command) -> None:
        command.reply(json.dumps({"awaited": expect_clients(command.body.decode())}).encode())

    return {
        "client_ended": drop,
        "client_restarting": expect,
        "ping": ping,
        **file_handlers(
            tables, index, num_servers, save_root=save_root, change_in_bulk=change_in_bulk
        ),
        **mailboxes.handlers(),
        **work_list_handlers(has_session, states),
    }


TransportName = Literal["auto", "tls", "plain"]
DurabilityName = Literal["off", "process", "disk", "replica"]

_MAX_CONNECTIONS = 2**20

SUCCESSOR_FILE = "successor.json"
"""The file in `ServerConfig.log_dir` with the settings for `sparsefleet server --recover`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """Configuration of one server of a fleet.

    >>> ServerConfig(endpoint="127.0.0.1:0").transport
    'auto'
    """

    endpoint: str = "127.0.0.1:9100"
    """HOST:PORT to listen on; port 0 picks a free port. Other machines can connect only if HOST is
    not loopback, which in turn requires a job key (docs/running_servers.md)."""

    index: int = 0
    """Position of this server in the clients' list of endpoints, from 0."""

    num_servers: int = 1
    """Number of servers in the fleet. Clients that expect a different number are rejected."""

    transport: TransportName = "auto"
    """"auto": TLS 1.3 with the job key over the network, shared memory for clients of the same user
    on this host; "tls": always TLS; "plain": clients prove the key, but nothing is encrypted."""

    num_threads: int = 0
    """Threads that execute requests; 0 means one per core, at most 8."""

    max_connections: int = 10_000
    """Limit on client connections. A worker uses one for heartbeats and one per concurrent request.
    The server raises its soft limit on open files; if the hard limit is too low, it accepts fewer.
    """

    max_unproven_connections: int = 0
    """Limit on connections that have not proven the job key yet; beyond it, a new connection
    replaces the oldest. 0 means a quarter of `max_connections`, at most 512."""

    max_unproven_per_address: int = 0
    """Limit on such connections per IPv4 address or IPv6 /64 network; 0 means half of
    `max_unproven_connections`.
    """

    max_frame_bytes: int = 256 << 20
    """Size limit for requests and replies; larger ones are rejected. A higher limit costs memory
    only while such messages are in progress.
    """

    peer_timeout_s: float = 10.0
    """A client that is silent for this long is considered lost. Larger values tolerate longer
    pauses but detect losses later."""

    handshake_timeout_s: float = 10.0
    """Time within which a new connection must prove the job key."""

    frame_timeout_s: float = 30.0
    """Maximum pause while a message is being sent or received."""

    drain_timeout_s: float = 30.0
    """How long requests in progress may take to finish at shutdown."""

    save_root: str = ""
    """Directory or fsspec URL that saves and loads are restricted to, including bases of deltas and
    symbolic links; empty means no restriction."""

    durability: DurabilityName = "off"
    """The failures that an acknowledged change survives. "off": none; "process": the death of this
    process (`kill -9`), since records are written before replies are sent; "disk": also power loss,
    since replies wait until records are on disk; "replica": the loss of this machine, since replies
    wait until `replica` has the records on its disk. See docs/running_servers.md."""

    log_dir: str = ""
    """Directory of the log and its snapshots, for this server alone; required unless `durability`
    is "off". Its contents are recovered at startup."""

    snapshot_bytes: int = 1 << 30
    """Log size in bytes after which a snapshot is written. It is written earlier if the log is
    longer than both 256 MiB and 16 times the last snapshot, or if the log is longer than 32 MiB and
    replaying it would take more than half a second, but never before the log is longer than half
    the last snapshot. With smaller values, recovery is faster but more is written."""

    replica: str = ""
    """HOST:PORT of the `sparsefleet replica` that holds a copy of the log; required if `durability`
    is "replica". The server starts only when the replica answers."""

    replica_wait_s: float = math.inf
    """Seconds that replies wait for a lost replica before the server continues without it, as with
    durability "process". If infinite, replies wait until the replica is back."""

    take_over: bool = False
    """Whether to kill a process that still holds `log_dir`, such as a suspended predecessor."""

    has_successor: bool = True
    """Whether `sparsefleet server --recover` may take over if this durable server dies. Set it to
    False if the program does more than serve, so only the same program can take over.
    """

    metrics: str = ""
    """HOST:PORT where the server's metrics are served for Prometheus; port 0 picks a free port. If
    empty, SPARSEFLEET_METRICS is used. Metrics are not protected by the job key."""

    notes: Mapping[str, bytes] = field(default_factory=dict)
    """Initial notes; clients read the notes of the first server."""

    def __post_init__(self) -> None:
        parse_endpoint(self.endpoint)
        if self.metrics:
            parse_endpoint(self.metrics)
        require_int(self, "num_servers", 1, 2**16)
        require_int(self, "index", 0, self.num_servers - 1)
        wanted = " or ".join(repr(name) for name in get_args(TransportName))
        require(self.transport in get_args(TransportName), self, "transport", wanted)
        wanted = " or ".join(repr(name) for name in get_args(DurabilityName))
        require(self.durability in get_args(DurabilityName), self, "durability", wanted)
        has_place = self.durability == "off" or bool(self.log_dir)
        require(has_place, self, "log_dir", "a directory, since durability is not 'off'")
        if self.durability == "replica":
            require(bool(self.replica), self, "replica", "the HOST:PORT of a `sparsefleet replica`")
        if self.replica:
            parse_endpoint(self.replica)
        if self.replica_wait_s != math.inf:
            require_not_negative(self, "replica_wait_s")
        require_int(self, "snapshot_bytes", 1, 2**62)
        require_int(self, "num_threads", 0, 1024)
        require_int(self, "max_connections", 1, _MAX_CONNECTIONS)
        require_int(self, "max_unproven_connections", 0, _MAX_CONNECTIONS)
        require_int(self, "max_unproven_per_address", 0, _MAX_CONNECTIONS)
        require_int(self, "max_frame_bytes", 1 << 16, _core.MAX_BODY_BYTES)
        for name in ("peer_timeout_s", "handshake_timeout_s", "frame_timeout_s", "drain_timeout_s"):
            require_positive(self, name)


class DurableSettings(TypedDict):
    """The durability fields of `ServerConfig`."""

    durability: DurabilityName
    log_dir: str
    replica: str


def durable_settings(index: int, environ: Mapping[str, str] | None = None) -> DurableSettings:
    """Return the durability settings in the environment for server `index`, started by a script.

    >>> asked = {"SPARSEFLEET_DURABILITY": "process", "SPARSEFLEET_LOG_DIR": "/tmp/job"}
    >>> durable_settings(1, asked)
    {'durability': 'process', 'log_dir': '/tmp/job/server-1', 'replica': ''}
    """
    environ = os.environ if environ is None else environ
    durability = environ.get("SPARSEFLEET_DURABILITY", "off")
    log_dir = environ.get("SPARSEFLEET_LOG_DIR", "")
    place = os.path.join(log_dir, f"server-{index}") if log_dir else ""
    replicas = [text.strip() for text in environ.get("SPARSEFLEET_REPLICAS", "").split(",")]
    replica = replicas[index % len(replicas)]
    return {"durability": durability, "log_dir": place, "replica": replica}  # type: ignore[typeddict-item]


def predecessor_config(log_dir: str) -> ServerConfig:
    """Return the configuration of the last server that used the directory.

    Raises ConfigError if no server used it, or if that server's program did more than serve.
    """
    path = os.path.join(log_dir, SUCCESSOR_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return ServerConfig(**found)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"no server can be recovered from {log_dir}: {error}; expected a --log-dir with a "
            f"{SUCCESSOR_FILE}, which a server writes once it is listening"
        ) from error


def await_order() -> str:
    """Wait as a launcher's spare; the launcher writes one line to stdin when a server has died.

    Returns the directory to recover, or "" if the spare is no longer needed. From then on, output
    goes to the log of the recovered server.
    """
    line = sys.stdin.buffer.readline()
    if not line:
        return ""
    order = json.loads(line)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    os.close(log)
    return str(order["recover"])


def _prepare_successor(config: ServerConfig, endpoint: Endpoint) -> None:
    """Write the configuration for a successor, without the notes, which the log contains."""
    fields = {name.name: getattr(config, name.name) for name in dataclasses.fields(config)}
    fields |= {"endpoint": str(endpoint), "log_dir": os.path.abspath(config.log_dir)}
    del fields["notes"], fields["has_successor"]
    path = os.path.join(config.log_dir, SUCCESSOR_FILE)
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(fields, file)
    os.replace(f"{path}.tmp", path)


_log = logging.getLogger("sparsefleet.server")
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR)
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNAL_LATENCY_S = 0.1  # Python runs signal handlers only between native calls


def run_server(config: ServerConfig) -> None:
    """Serve until SIGTERM, SIGINT or a client's shutdown request, then drain and return.

    Prints one line with the port when ready. A second signal stops the process immediately; signal
    handlers are restored. Outside the main thread, it installs no signal handlers. Raises OSError
    if the log of a durable server failed; a successor can then recover the server.
    """
    _core.keep_freed_memory()  # the next request needs the same amount again
    with EndingSignals() as ending:
        states = CommandStates()
        server = _start(config, states)
        handlers = default_handlers(
            server.tables(),
            config.index,
            config.num_servers,
            save_root=config.save_root,
            has_session=server.has_session,
            states=states,
            change_in_bulk=server.change_in_bulk,
            drop_clients=server.drop_clients,
            expect_clients=server.expect_clients,
        )
        states.recover(server)
        commands = CommandLoop(server, {**handlers, **profile_handlers(server)})
        end_metrics = PROCESS.add(lambda: server_samples(server.stats()))
        try:
            commands.start()
            if config.metrics:
                place = os.environ.get("SPARSEFLEET_METRICS_DIR", "")
                serve_metrics("server", config.index, config.metrics, place)
            report_metrics_if_asked("server", config.index)
            endpoint = Endpoint(parse_endpoint(config.endpoint).host, server.port)
            if config.durability != "off" and config.has_successor:
                _prepare_successor(config, endpoint)
            print(
                f"sparsefleet server {config.index} of {config.num_servers} "
                f"listening on {endpoint} ({config.transport})",
                flush=True,
            )
            _log.info("draining: %s", wait_for_the_end(server, ending))
        finally:
            end_metrics()
            commands.stop(config.drain_timeout_s)
            failure = server.failure
            server.stop()
        if failure:
            raise OSError(f"server {config.index}: {failure}")
        _log.info("drained, exiting")


def wait_for_the_end(server: _core.Server, ending: EndingSignals) -> str:
    """Wait until the server should stop; return the reason."""
    while ending.received is None:
        if server.wait_for_shutdown_request(_SIGNAL_LATENCY_S):
            return "a client requested shutdown"
    return ending.received.name


def _start(config: ServerConfig, states: CommandStates) -> _core.Server:
    endpoint = parse_endpoint(config.endpoint)
    return _core.Server(
        host=endpoint.host,
        port=endpoint.port,
        job_key=find_job_key([config.endpoint]),
        transport=config.transport,
        index=config.index,
        num_servers=config.num_servers,
        num_threads=config.num_threads,
        max_connections=config.max_connections,
        max_unproven=config.max_unproven_connections,
        max_unproven_per_address=config.max_unproven_per_address,
        max_frame_bytes=config.max_frame_bytes,
        peer_timeout_s=config.peer_timeout_s,
        handshake_timeout_s=config.handshake_timeout_s,
        frame_timeout_s=config.frame_timeout_s,
        drain_timeout_s=config.drain_timeout_s,
        notes=dict(config.notes),
        log=write_log,
        durability=config.durability,
        log_dir=config.log_dir,
        snapshot_bytes=config.snapshot_bytes,
        replica=config.replica,
        replica_wait_s=config.replica_wait_s,
        take_over=config.take_over,
        logged_commands=list(states.prefixes),
        write_command_state=states.write,
    )


def write_log(severity: int, message: str) -> None:
    """Log a line from the native server."""
    _log.log(_LEVELS[severity], message)


class EndingSignals:
    """Records the first SIGTERM or SIGINT; the next signal has its default effect.

    Does nothing outside the main thread.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        is_main = threading.current_thread() is threading.main_thread()  # Python's condition
        numbers = _ENDING_SIGNALS if is_main else ()
        self._before = {number: signal.getsignal(number) for number in numbers}

    def __enter__(self) -> Self:
        for number in self._before:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received = signal.Signals(number)
        for each in _ENDING_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
