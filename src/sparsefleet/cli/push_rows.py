"""`sparsefleet push-rows`: load exported models' rows into Redis and choose the served version."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from sparsefleet.errors import ConfigError

if TYPE_CHECKING:
    from sparsefleet.serving.row_stores.redis_rows import PushedVersion, RedisVersions
    from sparsefleet.serving.updates import RedisServer

__all__ = ["PUSH_ROWS_DESCRIPTION", "add_push_rows_flags", "run_push_rows_command"]

PUSH_ROWS_DESCRIPTION = """\
Loads the rows of an exported model into Redis as a new version, next to the versions in use. The
version is complete once all rows are written and read back; services switch to it when it is
activated. Earlier versions stay available for a rollback until they are deleted.

  sparsefleet push-rows export redis://127.0.0.1:6379/0?model=ads --activate
  sparsefleet push-rows redis://127.0.0.1:6379/0?model=ads --list
  sparsefleet push-rows redis://127.0.0.1:6379/0?model=ads --rollback
"""


def add_push_rows_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument(
        "places",
        nargs="+",
        metavar="WHERE",
        help="[MODEL_DIR] REDIS: the exported model to push, if any, and "
        "redis://[user:password@]host:port/database?model=NAME (default name: model)",
    )
    parser.add_argument(
        "--version", dest="label", default="", metavar="NAME", help="label of the pushed version"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--activate",
        nargs="?",
        const="",
        metavar="VERSION",
        help="serve this version (default: the pushed version)",
    )
    what.add_argument("--rollback", action="store_true", help="serve the previous version")
    what.add_argument("--list", action="store_true", help="list the versions")
    what.add_argument("--delete", metavar="VERSION", help="delete a version that is not active")
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="give up if Redis does not answer for this long (default 30)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_push_rows_command(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    # Imported here because other commands, such as a restarting server, do not need it.
    from sparsefleet.serving.row_stores.redis_rows import RedisVersions
    from sparsefleet.serving.updates import RedisServer, is_redis

    *directories, url = options.places
    only_versions = options.rollback or options.list or options.delete is not None
    if len(directories) > 1 or not is_redis(url):
        raise ConfigError("expected [MODEL_DIR] redis://host:port/database?model=NAME")
    if directories and (only_versions or options.activate):
        raise ConfigError(
            "--list, --rollback, --delete and --activate VERSION do not push a model; omit "
            "MODEL_DIR"
        )
    if not directories and not only_versions and not options.activate:
        raise ConfigError(
            "nothing to do; pass MODEL_DIR to push, or --list, --activate VERSION, --rollback or "
            "--delete VERSION"
        )
    server = RedisServer(url, timeout_s=options.timeout)
    try:
        versions = RedisVersions(server)
        if directories:
            _push(directories[0], server, versions, options)
        elif options.list:
            _show(versions, as_json=options.json)
        elif options.rollback:
            _print_result(options, "is active again", versions.rollback())
        elif options.delete is not None:
            _print_result(options, "is deleted", versions.delete(options.delete))
        else:
            _print_result(options, "is active", versions.activate(options.activate))
    finally:
        server.close()
    return 0


def _push(
    directory: str, server: RedisServer, versions: RedisVersions, options: argparse.Namespace
) -> None:
    shown = sys.stderr.isatty()

    def progress(table: str, done: int, of: int) -> None:
        print(
            f"\r{table}: {done:,} of {of:,} rows", end="\n" if done == of else "", file=sys.stderr
        )

    from sparsefleet.serving.row_stores.row_push import push_rows

    pushed = push_rows(directory, server, label=options.label, progress=progress if shown else None)
    if options.activate is None:
        _print_result(options, "is pushed", pushed)
    else:
        _print_result(options, "is pushed and active", versions.activate(pushed.digest))


def _print_result(options: argparse.Namespace, what: str, version: PushedVersion) -> None:
    if options.json:
        print(json.dumps(asdict(version)))
    else:
        print(f"version {_name(version)} {what}: {version.rows:,} rows")


def _show(versions: RedisVersions, *, as_json: bool) -> None:
    active, found = versions.active(), versions.all()
    if as_json:
        print(json.dumps({"active": active, "versions": [asdict(each) for each in found]}))
        return
    for each in found:
        pushed = datetime.fromtimestamp(each.pushed, timezone.utc).isoformat(timespec="seconds")
        mark = "active" if each.digest == active else ""
        print(f"{_name(each):40} {each.rows:>14,} rows  pushed {pushed}  {mark}".rstrip())


def _name(version: PushedVersion) -> str:
    return f"{version.digest} ({version.label})" if version.label else version.digest
