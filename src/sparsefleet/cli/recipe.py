"""`sparsefleet recipe`: list, show and run recipes from the zoo."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from sparsefleet.cli.option_names import naming_options
from sparsefleet.errors import ConfigError

__all__ = ["RECIPE_DESCRIPTION", "add_recipe_commands", "run_recipe_command"]

RECIPE_DESCRIPTION = """\
A recipe is data, a model and settings that reproduce a result. Its data is checked by md5 and
never downloaded: `recipe show` says where it comes from.

examples:
  sparsefleet recipe ls
  sparsefleet recipe show census_wide_deep
  sparsefleet recipe run census_wide_deep --data ~/data --out build/census
  sparsefleet recipe run movielens_deepfm --data ~/data --mode async --servers 2 --workers 2
"""


def add_recipe_commands(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands ls, show and run."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("ls", help="list all recipes")
    show = actions.add_parser(
        "show", help="show the data, protocol, settings and published figures"
    )
    show.add_argument("name", metavar="NAME", help="a name listed by `recipe ls`")
    run = actions.add_parser("run", help="train, evaluate, and write a report")
    run.add_argument("name", metavar="NAME", help="a name listed by `recipe ls`")
    run.add_argument(
        "--data",
        default="data",
        metavar="DIRECTORY",
        help="directory with the recipe's files (default data)",
    )
    run.add_argument("--mode", help="local, sync, half_async, async, hybrid or geo")
    run.add_argument("--servers", type=int, default=0, help="number of servers (default 0)")
    run.add_argument("--workers", type=int, default=1, help="number of workers (default 1)")
    run.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    run.add_argument("--epochs", type=int, help="number of epochs (default: the recipe's)")
    run.add_argument("--batch-size", type=int, help="batch size per worker (default: the recipe's)")
    run.add_argument(
        "--plain-sgd",
        action="store_true",
        help="train with plain SGD, as geo mode always does, for comparison",
    )
    run.add_argument(
        "--by-slot",
        action="store_true",
        help="also write report.html: importance of each input, calibration, slices",
    )
    run.add_argument(
        "--out",
        metavar="DIRECTORY",
        help="directory for report.json and report.md (default build/recipes/NAME)",
    )
    run.add_argument("--quiet", action="store_true", help="do not show progress")


def run_recipe_command(options: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    if options.action == "ls":
        return _list()
    if options.action == "show":
        return _show(options.name)
    return _run(options)


def _list() -> int:
    from sparsefleet.zoo.recipes import RECIPES, find_recipe

    for name in RECIPES:
        print(f"{name:22} {find_recipe(name).title}")
    return 0


def _show(name: str) -> int:
    from sparsefleet.zoo.recipes import find_recipe

    recipe = find_recipe(name)
    print(f"{recipe.name}: {recipe.title}\n\nprotocol: {recipe.protocol}\nfiles:")
    for file in recipe.files:
        print(f"  {file.path} (or .gz), md5 {file.md5 or 'not checked'}\n    from {file.source}")
    print(f"settings: {recipe.settings}")
    for one in recipe.published:
        print(f"published: {one.metric} {one.value} ({one.where})")
    return 0


def _run(options: argparse.Namespace) -> int:
    from sparsefleet.modes.mode_choice import mode_config
    from sparsefleet.zoo.recipes import find_recipe
    from sparsefleet.zoo.recipes.run import settings_of

    out = options.out or f"build/recipes/{options.name}"
    # All checks come before any process is started.
    recipe = find_recipe(options.name)
    with naming_options("Settings"):
        settings_of(recipe, options)
    if options.mode is not None:
        mode_config(options.mode)
    recipe.check(Path(options.data), options.seed)
    _check_out(Path(out))
    arguments = [options.name, "--data", options.data, "--seed", str(options.seed), "--out", out]
    arguments += ["--mode", options.mode] if options.mode else []
    for flag, value in (("--epochs", options.epochs), ("--batch-size", options.batch_size)):
        arguments += [] if value is None else [flag, str(value)]
    arguments += ["--plain-sgd"] if options.plain_sgd else []
    arguments += ["--by-slot"] if options.by_slot else []
    arguments += ["--quiet"] if options.quiet else []
    if not options.servers and options.workers == 1:
        from sparsefleet.zoo.recipes.run import main

        main(arguments)
    else:
        code = _launch(options, arguments, out)
        if code:
            return code
    print(f"report in {out}", file=sys.stderr)
    return 0


def _launch(options: argparse.Namespace, arguments: list[str], out: str) -> int:
    from sparsefleet.launch import run_job
    from sparsefleet.launch.launch_config import LaunchConfig

    with naming_options("LaunchConfig", num_servers="--servers", num_workers="--workers"):
        config = LaunchConfig(
            script="sparsefleet.zoo.recipes.run",
            is_module=True,
            arguments=tuple(arguments),
            num_servers=options.servers,
            num_workers=options.workers,
            native_servers=True,
            log_dir=f"{out}/logs",
            quiet=True,
            show="worker.0",
        )
    return run_job(config)


def _check_out(out: Path) -> None:
    """Create the directory for the report. Raises ConfigError if nothing can be written there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError("no permission to write")
    except OSError as error:
        raise ConfigError(
            f"--out {out}: cannot write the report there ({error.strerror or error}); pass a "
            "different directory"
        ) from error
