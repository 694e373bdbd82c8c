"""Take a model online: two days of training, rows in Redis, a service, and verification.

    python examples/online/go_online.py --folder online

Day 1 trains, saves and exports; its rows are pushed to Redis and served over HTTP, and `sparsefleet
verify` compares all copies of the model. Day 2 continues from the checkpoint and publishes changes
while it trains; the service follows, and everything is verified again. Exits with 0 only if both
checks pass.

Needs `pip install sparsefleet[redis,serve]` and redis-server, which this script starts itself.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import torch
from torch import nn

from sparsefleet import Trainer, TrainerConfig
from sparsefleet.train import PublishConfig

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "incremental"))
from train_day import BATCH, log_of_day, make_model

from click_log import ClickLog

WAIT_S = 60.0


def train(
    day: int, folder: Path, rows: int, *, start: Path | None, publish: PublishConfig | None
) -> None:
    """Train on a day; write a checkpoint, evaluation examples and, without `publish`, an export."""
    today, judged = log_of_day(day, rows)
    torch.manual_seed(day)  # the same initial weights in every run
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss, config = nn.BCEWithLogitsLoss(), TrainerConfig(quiet=True)
    with Trainer(model, loss, optimizer, config=config, publish=publish) as trainer:
        if start is not None:
            trainer.load(start)
        trainer.fit(today.named_batches(BATCH))
        auc = trainer.evaluate(judged.named_batches(BATCH))["auc"]
        trainer.save(folder / f"checkpoint-{day}")
        if publish is None:
            trainer.export(folder / "export", judged.named_batches(20)[0])
    write_examples(folder / f"examples-{day}.parquet", judged)
    print(f"day {day}: AUC {auc:.4f}", flush=True)


def write_examples(path: Path, log: ClickLog) -> None:
    """Write a Parquet file with a column for each input of the model and one for the labels."""
    columns = {"counts": list(log.counts), "keys": list(log.keys), "click": log.clicks}
    pyarrow.parquet.write_table(pa.table(columns), path)


def run(*command: object) -> None:
    """Run a sparsefleet command; if it fails, exit with its code."""
    texts = [str(part) for part in command]
    print("$ sparsefleet", *texts, flush=True)
    code = subprocess.run([sys.executable, "-m", "sparsefleet", *texts], check=False).returncode
    if code:
        sys.exit(code)


def verify(day: int, folder: Path, *flags: str) -> None:
    """Compare the export with the day's checkpoint and with everything online."""
    examples, report = folder / f"examples-{day}.parquet", folder / f"day-{day}.html"
    checkpoint = folder / f"checkpoint-{day}"
    given = ["--online", checkpoint, "--examples", examples, "--report", report, *flags]
    run("verify", folder / "export", *given)


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Start an empty Redis; yield its address."""
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("redis-server is not installed; run scripts/install_system_packages.sh")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen([program, *flags], stdout=subprocess.DEVNULL)
    try:
        wait_for_port(port)
        yield f"redis://127.0.0.1:{port}/0?model=clicks"
    finally:
        process.terminate()
        process.wait(WAIT_S)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                sys.exit(f"nothing is listening on port {port} after {WAIT_S:g} s")
            time.sleep(0.05)


@contextmanager
def service(export: Path, rows: str) -> Iterator[str]:
    """Start a service that reads rows from Redis and follows updates there; yield its URL."""
    command = ["serve", str(export), "--rows", rows, "--port", "0"]
    print("$ sparsefleet", *command, "&", flush=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "sparsefleet", *command], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()  # one line when it is ready; empty if it ends
        if "listening on" not in said:
            sys.exit("the service did not start")
        yield said.split("listening on ")[1].split()[0].rstrip(":")
    finally:
        process.terminate()
        process.wait(WAIT_S)


def main() -> None:
    parser = argparse.ArgumentParser(description="Takes a model online, and verifies it.")
    parser.add_argument("--folder", type=Path, default=Path("online"), help="output folder")
    parser.add_argument("--rows", type=int, default=20_000, help="examples per day")
    options = parser.parse_args()
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    export = folder / "export"
    train(1, folder, options.rows, start=None, publish=None)
    with redis_server(folder) as redis:
        run("push-rows", export, redis, "--version", "day-1", "--activate")
        with service(export, redis) as url:
            sides = ["--online", redis, "--online", url, "--label", "click"]
            verify(1, folder, *sides)
            publish = PublishConfig(model=export, target=redis, every_steps=10)
            train(2, folder, options.rows, start=folder / "checkpoint-1", publish=publish)
            verify(2, folder, *sides, "--updates", redis)
    print("both days are online exactly as trained")


if __name__ == "__main__":
    main()
