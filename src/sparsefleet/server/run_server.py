"""The life of a server process: listen, say so, serve until told to end, drain."""

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING

from sparsefleet import _core
from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.job_key import find_job_key
from sparsefleet.server.command_loop import CommandLoop
from sparsefleet.server.handlers import default_handlers
from sparsefleet.server.server_config import ServerConfig

if TYPE_CHECKING:
    from types import FrameType

    from typing_extensions import Self

__all__ = ["run_server"]

_log = logging.getLogger("sparsefleet.server")
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR)
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNAL_LATENCY_S = 0.1  # Python runs a signal's handler between native calls only


def run_server(config: ServerConfig) -> None:
    """Serves until SIGTERM, SIGINT or a client's shutdown request, then drains and returns.

    Prints one line when ready, with the port it has. A second signal ends the process at
    once. Must run in the main thread, as signals are handled there; restores the handlers.
    """
    with _EndingSignals() as ending:
        server = _start(config)
        handlers = default_handlers(
            server.tables(),
            config.index,
            config.num_servers,
            save_root=config.save_root,
            has_client=server.has_client,
        )
        commands = CommandLoop(server, handlers)
        try:
            commands.start()
            endpoint = Endpoint(parse_endpoint(config.endpoint).host, server.port)
            print(
                f"sparsefleet server {config.index} of {config.num_servers} "
                f"listening on {endpoint} ({config.transport})",
                flush=True,
            )
            _log.info("draining: %s", _wait_for_the_end(server, ending))
        finally:
            commands.stop(config.drain_timeout_s)
            server.stop()
        _log.info("drained, ending")


def _wait_for_the_end(server: _core.Server, ending: _EndingSignals) -> str:
    """Returns why the server is to end."""
    while ending.received is None:
        if server.wait_for_shutdown_request(_SIGNAL_LATENCY_S):
            return "a client asked for shutdown"
    return ending.received.name


def _start(config: ServerConfig) -> _core.Server:
    endpoint = parse_endpoint(config.endpoint)
    return _core.Server(
        host=endpoint.host,
        port=endpoint.port,
        job_key=find_job_key([config.endpoint]),
        transport=config.transport,
        index=config.index,
        num_servers=config.num_servers,
        num_threads=config.num_threads,
        max_frame_bytes=config.max_frame_bytes,
        peer_timeout_s=config.peer_timeout_s,
        handshake_timeout_s=config.handshake_timeout_s,
        frame_timeout_s=config.frame_timeout_s,
        drain_timeout_s=config.drain_timeout_s,
        notes=dict(config.notes),
        log=_write_log,
    )


def _write_log(severity: int, message: str) -> None:
    _log.log(_LEVELS[severity], message)


class _EndingSignals:
    """Notes the first SIGTERM or SIGINT; the next one does what it does by default."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before = {number: signal.getsignal(number) for number in _ENDING_SIGNALS}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("run_server must be called in the main thread")
        for number in _ENDING_SIGNALS:
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
