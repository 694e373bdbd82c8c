"""`sparsefleet serve` and `sparsefleet serve-switch`: predictions over HTTP, and which version."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from sparsefleet.errors import ConfigError, NotFoundError, RpcError, SparseFleetError

__all__ = [
    "SERVE_DESCRIPTION",
    "SWITCH_DESCRIPTION",
    "add_serve_flags",
    "add_switch_flags",
    "run_serve_command",
    "run_switch_command",
]

SERVE_DESCRIPTION = """\
Serves an exported model over HTTP until SIGTERM or SIGINT, then finishes the requests under way
and ends with 0. MODELS is an export, or a folder of exports, one a version: `sparsefleet
serve-switch` says which is on. Open http://HOST:PORT in a browser to try it, /docs for the API.
"""
SWITCH_DESCRIPTION = """\
Has a running service switch to another version, or back to the one before; no request is dropped.
With neither, lists the versions. Services that share a folder of versions follow.
"""
_TOKEN = "SPARSEFLEET_SERVE_TOKEN"
_SWITCH_S = 600.0


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", metavar="MODELS", type=Path, help="an export, or a folder of them"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="default %(default)s: this machine only"
    )
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default 8000)")
    parser.add_argument(
        "--rows",
        default="",
        metavar="WHERE",
        help="redis://host:port/database?model=NAME, or the servers of a training as "
        "host:port,host:port (default: in the files of the export)",
    )
    parser.add_argument(
        "--updates",
        default="",
        metavar="WHERE",
        help="the directory or Redis that a trainer publishes to (default: the Redis of --rows)",
    )
    parser.add_argument(
        "--engine",
        choices=("torch", "onnx", "auto"),
        default="auto",
        help="what computes (default auto: ONNX if it is there, else torch)",
    )
    _add_token(parser)
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
        "--no-follow", action="store_true", help="do not look for new versions by itself"
    )


_SETTINGS: tuple[tuple[str, Any, Any, str, str], ...] = (
    ("workers", int, 2, "N", "threads that predict"),
    ("threads", int, 1, "N", "threads of one prediction"),
    ("max-requests", int, 256, "N", "requests under way; one more is answered with 429"),
    ("max-request-bytes", int, 4 << 20, "N", "of a request; a larger one is answered with 413"),
    ("max-examples", int, 10_000, "N", "of a request"),
    ("cache-bytes", int, 256 << 20, "N", "of rows from Redis that are kept here"),
    ("store-timeout", float, 1.0, "SECONDS", "for an answer of what has the rows"),
    ("max-batch", int, 1024, "N", "examples of several requests predicted at once"),
    ("batch-wait", float, 0.0, "SECONDS", "how long a batch waits for more"),
    ("timeout", float, 5.0, "SECONDS", "for an answer; then 504"),
    ("read-timeout", float, 10.0, "SECONDS", "for a request to be sent; then 408"),
    ("drain-delay", float, 0.0, "SECONDS", "go on accepting after SIGTERM, but say not ready"),
    ("drain-timeout", float, 15.0, "SECONDS", "for requests under way to end"),
)


def run_serve_command(options: argparse.Namespace) -> int:
    try:
        from sparsefleet.serve.http import ServeConfig, run_service
    except ImportError as error:
        raise ConfigError(
            f"sparsefleet serve needs more packages: pip install sparsefleet[serve] ({error})"
        ) from error
    run_service(
        ServeConfig(
            models=options.models,
            rows=options.rows,
            updates=options.updates,
            cache_bytes=options.cache_bytes,
            store_timeout_s=options.store_timeout,
            engine=options.engine,
            host=options.host,
            port=options.port,
            token=_token(options),
            workers=options.workers,
            threads=options.threads,
            max_requests=options.max_requests,
            max_request_bytes=options.max_request_bytes,
            max_bytes_under_way=max(256 << 20, options.max_request_bytes),
            max_examples=options.max_examples,
            max_batch=options.max_batch,
            batch_wait_s=options.batch_wait,
            timeout_s=options.timeout,
            read_timeout_s=options.read_timeout,
            drain_delay_s=options.drain_delay,
            drain_timeout_s=options.drain_timeout,
            follow=not options.no_follow,
        )
    )
    return 0


def add_switch_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="of the service, as http://127.0.0.1:8000")
    parser.add_argument("version", metavar="VERSION", nargs="?", help="its name or digest")
    parser.add_argument("--rollback", action="store_true", help="back to the version before")
    parser.add_argument(
        "--timeout",
        type=float,
        default=_SWITCH_S,
        metavar="SECONDS",
        help="for the new version to be opened (default 600)",
    )
    _add_token(parser)


def run_switch_command(options: argparse.Namespace) -> int:
    if options.version and options.rollback:
        raise ConfigError("give a version or --rollback, not both")
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
    before = f", before: {previous['name']} ({previous['version']})" if previous else ""
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
        print(f"the version that is chosen cannot be served: {found['failure']}", file=sys.stderr)


def _ask(options: argparse.Namespace, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """The service's answer; None asks with GET."""
    request = urllib.request.Request(options.url.rstrip("/") + path)
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    token = _token(options)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=options.timeout) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        raise _told(options.url, error) from error
    except (OSError, ValueError) as error:
        raise RpcError(f"{options.url} does not answer as a service: {error}") from error


def _told(url: str, error: urllib.error.HTTPError) -> SparseFleetError:
    try:
        message = json.load(error)["error"]["message"]
    except (OSError, ValueError, KeyError, TypeError):
        message = error.reason
    kind = NotFoundError if error.code == 404 else RpcError
    return kind(f"{url} refuses ({error.code}): {message}")


def _add_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"holds the bearer token (default: {_TOKEN}, else no token)",
    )


def _token(options: argparse.Namespace) -> str | None:
    if options.token_file is not None:
        try:
            return str(options.token_file.read_text(encoding="utf-8")).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--token-file {options.token_file} cannot be read: {error}"
            ) from error
    return os.environ.get("SPARSEFLEET_SERVE_TOKEN") or None
