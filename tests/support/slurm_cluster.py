"""A Slurm cluster on loopback: munged, slurmctld and one slurmd per node, for one test."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.launch_process import wait_until
from tests.support.ports import free_ports

from sparsefleet.fleet import role_from_environment

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue", "sinfo")
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
_LONGEST_SOCKET_PATH = 90

_CONFIG = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket,cred_expire=5
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
JobRequeue=1
ReturnToService=2
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """Return the commands that a cluster needs and that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


@dataclass(frozen=True)
class Task:
    """A process of a job that Slurm runs."""

    pid: int
    parent: int
    kind: str
    index: int


class SlurmCluster:
    """Nodes are named by their addresses, 127.0.0.2 and so on. Close it at the end."""

    def __init__(self, place: Path, num_nodes: int) -> None:
        assert len(str(place)) < _LONGEST_SOCKET_PATH, place
        self.place = place
        self._environ = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(place / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []
        ctld_port, *ports = free_ports(1 + num_nodes)
        names = [f"127.0.0.{2 + number}" for number in range(num_nodes)]
        nodes = "\n".join(
            f"NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=16000 State=UNKNOWN"
            for name, port in zip(names, ports, strict=True)
        )
        config = _CONFIG.format(
            ctld_port=ctld_port, user=getpass.getuser(), place=place, nodes=nodes
        )
        (place / "slurm.conf").write_text(config)
        (place / "state").mkdir()
        (place / "munge.key").write_bytes(secrets.token_bytes(1024))
        (place / "munge.key").chmod(0o600)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
        files["seed-file"] = "seed"
        options = [f"--{option}={place}/munge.{end}" for option, end in files.items()]
        self._start("munged", "--foreground", "--force", *options)
        wait_until((place / "munge.socket").exists, "munged listening")
        self._start("slurmctld", "-D", "-c")
        for name in names:
            self._start("slurmd", "-D", "-N", name)
        wait_until(
            lambda: self._idle_nodes() == num_nodes, f"{num_nodes} nodes idle:\n{self.logs()}"
        )

    def run(self, *words: str, directory: Path | None = None) -> str:
        """Run a command of Slurm; return its output."""
        done = subprocess.run(
            words, env=self._environ, cwd=directory, capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def submit(self, script: Path) -> int:
        """Submit a batch script in its directory; return the number of the job."""
        return int(self.run("sbatch", "--parsable", script.name, directory=script.parent))

    def is_over(self, job: int) -> bool:
        """Return whether the job has ended; make sure that a requeued job starts."""
        shown = self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
        states = set(shown.split())
        if "PENDING" in states:
            # The scheduler of heterogeneous jobs looks at the queue only after a change.
            self.run("scontrol", "update", f"JobId={job}", "Nice=0")
        ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
        return bool(states) and states <= ended

    def exit_code(self, job: int) -> int:
        """Return the exit code of the batch script."""
        shown = self.run("scontrol", "show", "job", str(job), "--oneliner").split("\n")[0]
        return int(shown.split(" ExitCode=")[1].split(":")[0])

    def tasks(self, word: str) -> list[Task]:
        """Return the Python processes of jobs here that have the word among their arguments."""
        found = []
        for pid, environ, command in self._processes():
            if environ.get("SLURM_STEP_ID", "batch").isdecimal() and word in command:
                if not os.path.basename(command[0]).startswith("python"):
                    continue
                role = role_from_environment(environ)
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                found.append(Task(pid, parent, role.kind, role.index))
        return found

    def logs(self) -> str:
        """Return the last lines of all daemons."""
        texts = [f"{path}:\n{path.read_text()[-2000:]}" for path in self.place.glob("*.log")]
        return "\n".join(texts)

    def close(self) -> None:
        """End all jobs, then all daemons, and what they left."""
        try:
            self.run("scancel", "--full", "--signal=KILL", f"--user={getpass.getuser()}")
            self.run("scancel", f"--user={getpass.getuser()}")
            end = time.monotonic() + 10
            while self._processes() and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
            for daemon in self._daemons:
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
            for pid, _, _ in self._processes():
                os.kill(pid, signal.SIGKILL)

    def _idle_nodes(self) -> int:
        try:
            shown = self.run("sinfo", "--noheader", "--states=idle", "--Node", "--format=%N")
        except RuntimeError:  # the controller does not listen yet
            return 0
        return len(shown.split())

    def _start(self, program: str, *words: str) -> None:
        path = shutil.which(program, path=_PATH)
        assert path is not None
        with open(self.place / f"{program}-{len(self._daemons)}.out.log", "wb") as out:
            self._daemons.append(
                subprocess.Popen([path, *words], env=self._environ, stdout=out, stderr=out)
            )

    def _processes(self) -> list[tuple[int, dict[str, str], list[str]]]:
        """Return all processes with this cluster's configuration, apart from its daemons."""
        ours = {daemon.pid for daemon in self._daemons}
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                entries = (path / "environ").read_bytes().decode("utf-8", "replace").split("\0")
                command = (path / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            except OSError:
                continue  # it has ended, or belongs to somebody else
            environ = dict(entry.partition("=")[::2] for entry in entries)
            if (
                environ.get("SLURM_CONF") == self._environ["SLURM_CONF"]
                and int(path.name) not in ours
            ):
                found.append((int(path.name), environ, command))
        return found
