"""`sparsefleet serve` and `serve-switch`: serve predictions over HTTP and switch versions."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from sparsefleet.cli.option_names import naming_options
from sparsefleet.errors import ConfigError, NotFoundError, RpcError, SparseFleetError

__all__ = [
    "SERVE_DESCRIPTION",
    "SWITCH_DESCRIPTION",
    "add_serve_flags",
    "add_switch_flags",
    "read_token",
    "run_serve_command",
    "run_switch_command",
]

SERVE_DESCRIPTION = """\
Serves an exported model over HTTP until SIGTERM or SIGINT, then finishes the requests in progress
and exits with 0. MODELS is an exported model, or a folder of them, one per version; `sparsefleet
serve-switch` selects the active one. Open http://HOST:PORT in a browser to try it, /docs for the
API.
"""
SWITCH_DESCRIPTION = """\
Switches a running service to a different version, or back to the previous one; no request is
dropped. Without VERSION and --rollback, lists the versions. Other services that share the folder of
versions also switch.
"""
_TOKEN = "SPARSEFLEET_SERVE_TOKEN"
_SWITCH_S = 600.0


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", metavar="MODELS", type=Path, help="an exported model, or a folder of them"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address (default %(default)s: this machine only)"
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="port; 0 picks a free one (default 8000)"
    )
    parser.add_argument(
        "--rows",
        default="",
        metavar="WHERE",
        help="where the rows are: redis://host:port/database?model=NAME, or training servers as "
        "host:port,host:port (default: the files of the exported model)",
    )
    parser.add_argument(
        "--updates",
        default="",
        metavar="WHERE",
        help="directory or Redis URL that training publishes updates to (default: as in --rows)",
    )
    parser.add_argument(
        "--engine",
        choices=("torch", "onnx", "auto"),
        default="auto",
        help="inference engine (default auto: ONNX if exported, else torch)",
    )
    parser.add_argument(
        "--allowed-hosts",
        action="extend",
        type=lambda text: [name for name in text.split(",") if name],
        default=[],
        metavar="NAME[,NAME...]",
        help="names allowed in the Host header besides IP addresses, localhost and --host: "
        "model.example.com, .example.com for a whole domain, or '*'; others get 421",
    )
    _add_token(parser)
    parser.add_argument(
        "--open-readyz",
        action="store_true",
        help="allow /readyz without the token, for load balancers; it then returns only a status",
    )
    for flag, kind, default, unit, text in _SETTINGS:
        parser.add_argument(
            f"--{flag}",
            type=kind,
            default=default,
            metavar=unit,
            help=f"{text} (default {default:,})"
            if kind is int
            else f"{text} (default {default:g})",
        )
    parser.add_argument(
        "--no-follow", action="store_true", help="do not look for new versions automatically"
    )


_SETTINGS: tuple[tuple[str, Any, Any, str, str], ...] = (
    ("workers", int, 2, "N", "threads that predict"),
    ("threads", int, 1, "N", "threads per prediction"),
    ("max-requests", int, 256, "N", "concurrent requests; more get 429"),
    ("max-request-bytes", int, 4 << 20, "N", "size of a request; larger ones get 413"),
    ("max-row-bytes", int, 64 << 20, "N", "rows per request, ids x width x 4; more gets 413"),
    ("max-bytes-under-way", int, 512 << 20, "N", "estimated memory of all requests; more gets 429"),
    ("max-connections", int, 1024, "N", "open connections; a new one replaces the most idle"),
    ("max-connections-per-address", int, 512, "N", "open connections per client address"),
    ("keep-alive", float, 75.0, "SECONDS", "maximum idle time of a connection"),
    ("max-examples", int, 10_000, "N", "examples per request"),
    ("cache-bytes", int, 256 << 20, "N", "cache for rows from Redis"),
    ("store-timeout", float, 1.0, "SECONDS", "time limit for reading rows from the row store"),
    ("max-batch", int, 1024, "N", "examples from several requests predicted together"),
    ("batch-wait", float, 0.0, "SECONDS", "how long a batch waits for more examples"),
    ("timeout", float, 5.0, "SECONDS", "time limit for a response; then 504"),
    ("read-timeout", float, 10.0, "SECONDS", "time limit for receiving a request; then 408"),
    ("drain-delay", float, 0.0, "SECONDS", "keep serving after SIGTERM, but report not ready"),
    ("drain-timeout", float, 15.0, "SECONDS", "time limit for requests in progress at shutdown"),
)


_OPTION_OF = {
    "models": "MODELS",
    "token": "--token-file",
    **{
        f"{name.replace('-', '_')}_s": f"--{name}"
        for name, _, _, unit, _ in _SETTINGS
        if unit == "SECONDS"
    },
}
"""Options by the field of ServeConfig, where they have different names."""


def run_serve_command(options: argparse.Namespace) -> int:
    try:
        from sparsefleet.serving.http import ServeConfig, run_service
    except ImportError as error:
        raise ConfigError(
            "sparsefleet serve needs additional packages; run `pip install sparsefleet[serve]` "
            f"({error})"
        ) from error
    with naming_options("ServeConfig", **_OPTION_OF):
        config = ServeConfig(
            models=options.models,
            rows=options.rows,
            updates=options.updates,
            cache_bytes=options.cache_bytes,
            store_timeout_s=options.store_timeout,
            engine=options.engine,
            host=options.host,
            port=options.port,
            allowed_hosts=tuple(options.allowed_hosts),
            token=read_token(options.token_file),
            open_readyz=options.open_readyz,
            max_connections=options.max_connections,
            max_connections_per_address=options.max_connections_per_address,
            keep_alive_s=options.keep_alive,
            workers=options.workers,
            threads=options.threads,
            max_requests=options.max_requests,
            max_request_bytes=options.max_request_bytes,
            max_row_bytes=options.max_row_bytes,
            max_bytes_under_way=max(options.max_bytes_under_way, options.max_request_bytes),
            max_examples=options.max_examples,
            max_batch=options.max_batch,
            batch_wait_s=options.batch_wait,
            timeout_s=options.timeout,
            read_timeout_s=options.read_timeout,
            drain_delay_s=options.drain_delay,
            drain_timeout_s=options.drain_timeout,
            follow=not options.no_follow,
        )
    run_service(config)
    return 0


def add_switch_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the service, for example http://127.0.0.1:8000")
    parser.add_argument("version", metavar="VERSION", nargs="?", help="name or digest")
    parser.add_argument("--rollback", action="store_true", help="switch to the previous version")
    parser.add_argument(
        "--timeout",
        type=float,
        default=_SWITCH_S,
        metavar="SECONDS",
        help="time limit for opening the new version (default 600)",
    )
    _add_token(parser)


def run_switch_command(options: argparse.Namespace) -> int:
    if options.version and options.rollback:
        raise ConfigError("give either a version or --rollback, not both")
    if not options.url.startswith(("http://", "https://")):
        raise ConfigError(f"URL must start with http:// or https://, got {options.url!r}")
    if options.rollback:
        found = _ask(options, "/v1/versions/rollback", {})
    elif options.version:
        found = _ask(options, "/v1/versions/active", {"version": options.version})
    else:
        _print_versions(_ask(options, "/v1/versions", None))
        return 0
    active, previous = found["active"], found["previous"]
    before = f", previously {previous['name']} ({previous['version']})" if previous else ""
    print(f"serving {active['name']} ({active['version']}){before}")
    return 0


def _print_versions(found: dict[str, Any]) -> None:
    active, previous = found["active"] or {}, found["previous"] or {}
    for version in found["versions"]:
        digest = version["version"]
        state = {active.get("version"): "active", previous.get("version"): "previous"}
        print(
            f"{version['name']}\t{digest}\t{version['created']}\t{state.get(digest, '')}".rstrip()
        )
    if found["failure"]:
        print(f"the selected version cannot be served: {found['failure']}", file=sys.stderr)


def _ask(options: argparse.Namespace, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """Return the service's response. The method is GET if there is no body."""
    request = urllib.request.Request(options.url.rstrip("/") + path)
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    token = read_token(options.token_file)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=options.timeout) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        raise _http_error(options.url, error) from error
    except (OSError, ValueError) as error:
        raise RpcError(
            f"{options.url}: unreachable, or not a sparsefleet service: {error}"
        ) from error


def _http_error(url: str, error: urllib.error.HTTPError) -> SparseFleetError:
    try:
        message = json.load(error)["error"]["message"]
    except (OSError, ValueError, KeyError, TypeError):
        message = error.reason
    kind = NotFoundError if error.code == 404 else RpcError
    return kind(f"{url}: HTTP {error.code}: {message}")


def _add_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with the bearer token (default: {_TOKEN}, if set)",
    )


def read_token(path: Path | None) -> str | None:
    """Return the bearer token in a file or, without one, in the environment; None if neither."""
    if path is not None:
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {path} cannot be read: {error}") from error
    return os.environ.get(_TOKEN) or None
