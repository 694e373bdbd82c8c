"""Reads the role of this process from the variables that Slurm, JobSet or torchrun sets.

A scheduler's environment variables are translated into sparsefleet's own, which `roles.py` then
reads and checks as if a launcher had set them. Variables of sparsefleet that are already set take
precedence.

* Slurm, in a process started by `srun`: component 0 of a heterogeneous job holds the servers,
  component 1 the workers. A step of any other job has only workers.
* JobSet: the replicated job `servers` holds the servers, `workers` (or `node`, as in Kubeflow
  Trainer) the workers.
* torchrun: only workers. SPARSEFLEET_SERVERS names their servers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparsefleet.endpoint import Endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.checked_environ import CheckedEnviron, Variable, any_set

__all__ = ["expand_counts", "expand_nodes", "require_alone", "scheduler_variables"]

_DEFAULT_PORT = 9100
_SERVERS_JOB = "servers"
_WORKERS_JOBS = ("workers", "node")
_MAX_NAMES = 2**17


def scheduler_variables(
    variables: Mapping[str, str] | None = None, *, has_servers: bool = True
) -> dict[str, str]:
    """Return sparsefleet's environment variables for this process, derived from its scheduler's.

    Return {} if no scheduler has started this process.

    has_servers: whether the job must have servers; False if it may be a collective job without any.

    >>> scheduler_variables({"JOBSET_NAME": "ads", "REPLICATED_JOB_NAME": "workers",
    ...     "JOB_COMPLETION_INDEX": "1", "SPARSEFLEET_NUM_SERVERS": "1"})["SPARSEFLEET_SERVERS"]
    'ads-servers-0-0.ads:9100'
    """
    variables = os.environ if variables is None else variables
    if any_set(variables, ("JOBSET_NAME",)):
        return _of_jobset(CheckedEnviron(variables, "JOBSET_NAME is"))
    if any_set(variables, ("SLURM_STEP_ID",)):
        return _of_slurm(CheckedEnviron(variables, "SLURM_STEP_ID is"), has_servers=has_servers)
    if any_set(variables, ("RANK",)) and any_set(variables, ("SPARSEFLEET_SERVERS",)):
        return _of_torchrun(CheckedEnviron(variables, "torchrun sets it with RANK"))
    return {}


def require_alone(variables: Mapping[str, str] | None = None) -> None:
    """Raise an error if this process would train alone although it was started as one of several.

    >>> require_alone({"RANK": "0", "WORLD_SIZE": "1"})
    """
    environ = CheckedEnviron(os.environ if variables is None else variables, "")
    torchrun, srun = environ.integer("WORLD_SIZE"), environ.integer("SLURM_STEP_NUM_TASKS")
    for starter, count in (("torchrun", torchrun), ("srun", srun)):
        if count > 1:
            raise ConfigError(
                f"{starter} has started {count} processes but no servers, so each would train its "
                "own model. Start servers and set SPARSEFLEET_SERVERS, or use "
                "`sparsefleet launch`, a script from `sparsefleet manifest slurm`, or "
                "mode='collective', which needs no servers (docs/clusters.md)"
            )


def _of_jobset(environ: CheckedEnviron) -> dict[str, str]:
    name, own = environ["JOBSET_NAME"].text, environ["REPLICATED_JOB_NAME"].text
    if own != _SERVERS_JOB and own not in _WORKERS_JOBS:
        raise ConfigError(
            f"REPLICATED_JOB_NAME is {own!r}, which is not a known role: name the replicated jobs "
            "of the "
            f"JobSet {_SERVERS_JOB!r} and {_WORKERS_JOBS[0]!r}, or set SPARSEFLEET_ROLE and "
            "SPARSEFLEET_INDEX"
        )
    role = "server" if own == _SERVERS_JOB else "worker"
    found = {"SPARSEFLEET_ROLE": role, "SPARSEFLEET_INDEX": environ["JOB_COMPLETION_INDEX"].text}
    port = _port(environ)
    subdomain, host = environ.get("JOBSET_SUBDOMAIN"), environ.get("HOSTNAME")
    network = name if subdomain is None else subdomain.text
    count = environ.integer("SPARSEFLEET_NUM_SERVERS", below=(_MAX_NAMES, "servers"))
    if count:
        hosts = [f"{name}-{_SERVERS_JOB}-0-{number}.{network}" for number in range(count)]
        found["SPARSEFLEET_SERVERS"] = ",".join(str(Endpoint(host, port)) for host in hosts)
    if role == "server" and host is not None:
        # Available in the pod at once; the name in the cluster's DNS appears later.
        found["SPARSEFLEET_LISTEN"] = str(Endpoint(host.text, port))
    if role == "worker":
        found["SPARSEFLEET_MEETING_POINT"] = str(Endpoint(f"{name}-{own}-0-0.{network}", port + 1))
        found["SPARSEFLEET_WORKERS_PER_NODE"] = "1"
    return found


def _of_slurm(environ: CheckedEnviron, *, has_servers: bool) -> dict[str, str]:
    if environ.integer("SLURM_HET_SIZE") > 1:
        return _of_components(environ)
    servers = environ.get("SPARSEFLEET_SERVERS")
    if has_servers and servers is None:
        return {}
    step = _Tasks.parse(environ["SLURM_STEP_NODELIST"], environ["SLURM_STEP_TASKS_PER_NODE"])
    if step.count < 2 and servers is None:
        return {}
    return _slurm_workers(environ, step)


def _of_components(environ: CheckedEnviron) -> dict[str, str]:
    size = environ.integer("SLURM_HET_SIZE")
    if size != 2:
        raise ConfigError(
            f"SLURM_HET_SIZE is {size}: expected 2 components, one with servers and one with "
            "workers; otherwise set SPARSEFLEET_ROLE, SPARSEFLEET_INDEX, SPARSEFLEET_SERVERS and "
            "SPARSEFLEET_WORKERS"
        )
    servers = _Tasks.parse(
        environ["SLURM_JOB_NODELIST_HET_GROUP_0"], environ["SLURM_TASKS_PER_NODE_HET_GROUP_0"]
    )
    workers = _Tasks.parse(
        environ["SLURM_JOB_NODELIST_HET_GROUP_1"], environ["SLURM_TASKS_PER_NODE_HET_GROUP_1"]
    )
    own = environ["SLURMD_NODENAME"].text
    if (own in servers.nodes) == (own in workers.nodes):
        where = "in both components" if own in servers.nodes else "in none of the job's components"
        raise ConfigError(
            f"SLURMD_NODENAME {own!r} is {where}, which does not determine the role; set "
            "SPARSEFLEET_ROLE and "
            "SPARSEFLEET_INDEX"
        )
    port = _port(environ)
    endpoints = [
        str(Endpoint(host, port + number))
        for host, count in zip(servers.nodes, servers.counts, strict=True)
        for number in range(count)
    ]
    found = {"SPARSEFLEET_SERVERS": ",".join(endpoints), "SPARSEFLEET_WORKERS": str(workers.count)}
    both = servers.count + workers.count  # one srun may start both
    if own in workers.nodes:
        return found | _slurm_workers(environ, workers, both)
    index = servers.index_of(environ, both)
    return found | {"SPARSEFLEET_ROLE": "server", "SPARSEFLEET_INDEX": str(index)}


def _slurm_workers(environ: CheckedEnviron, tasks: _Tasks, both: int = 0) -> dict[str, str]:
    found = {
        "SPARSEFLEET_ROLE": "worker",
        "SPARSEFLEET_INDEX": str(tasks.index_of(environ, both)),
        "SPARSEFLEET_WORKERS": str(tasks.count),
    }
    if (
        len(set(tasks.counts)) == 1
    ):  # otherwise workers could not tell which of them share a machine
        found["SPARSEFLEET_MEETING_POINT"] = str(Endpoint(tasks.nodes[0], _port(environ)))
        found["SPARSEFLEET_WORKERS_PER_NODE"] = str(tasks.counts[0])
    return found


@dataclass(frozen=True, slots=True)
class _Tasks:
    """The nodes of a Slurm step or heterogeneous component, and the number of tasks on each."""

    nodes: list[str]
    counts: list[int]

    @staticmethod
    def parse(nodes: Variable, counts: Variable) -> _Tasks:
        made = _Tasks(expand_nodes(nodes.text), expand_counts(counts.text))
        if len(made.nodes) != len(made.counts):
            raise counts.refused(f"one count for each of the nodes {nodes.text}")
        return made

    @property
    def count(self) -> int:
        return sum(self.counts)

    def index_of(self, environ: CheckedEnviron, both: int = 0) -> int:
        """Return this task's index, counted node by node regardless of the step's distribution."""
        own = environ["SLURMD_NODENAME"]
        if own.text not in self.nodes:
            raise own.refused(f"one of the nodes {','.join(self.nodes)}")
        started = environ.integer("SLURM_STEP_NUM_TASKS")
        if started not in (0, self.count, both):
            raise ConfigError(
                f"this step has {started} tasks, but its part of the job was allocated "
                f"{self.count}: "
                "call srun without --ntasks and --nodes to start all of them"
            )
        node = self.nodes.index(own.text)
        limit = (self.counts[node], f"tasks on {own.text}")
        return sum(self.counts[:node]) + environ.integer("SLURM_LOCALID", below=limit)


def _of_torchrun(environ: CheckedEnviron) -> dict[str, str]:
    found = {
        "SPARSEFLEET_ROLE": "worker",
        "SPARSEFLEET_INDEX": environ["RANK"].text,
        "SPARSEFLEET_WORKERS": environ["WORLD_SIZE"].text,
    }
    per_node = environ.get("LOCAL_WORLD_SIZE")
    return found if per_node is None else found | {"SPARSEFLEET_WORKERS_PER_NODE": per_node.text}


def expand_nodes(text: str) -> list[str]:
    """Return the nodes of a Slurm node list.

    >>> expand_nodes("cpu[01-03,7],big1")
    ['cpu01', 'cpu02', 'cpu03', 'cpu7', 'big1']
    """
    names: list[str] = []
    for word in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        made = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", word.strip()):
            endings = (
                [plain] if plain else [end for part in ranges.split(",") for end in _run(part)]
            )
            made = [start + end for start in made for end in endings]
            if len(made) + len(names) > _MAX_NAMES:
                raise ConfigError(f"the node list {text!r} has more than {_MAX_NAMES} nodes")
        names += made
    if not names or "[" in "".join(names) or re.sub(r"\[[^\[\]]*\]", "", text).count("["):
        raise ConfigError(f"a Slurm node list must look like cpu[01-04],big1, got {text!r}")
    return names


def _run(text: str) -> list[str]:
    first, dash, last = text.partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise ConfigError(f"a range in a Slurm node list must look like 01-04, got {text!r}")
    if int(last) - int(first) >= _MAX_NAMES:
        raise ConfigError(
            f"the range {text!r} in a Slurm node list has more than {_MAX_NAMES} nodes"
        )
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def expand_counts(text: str) -> list[int]:
    """Return the number of tasks per node from Slurm's notation.

    >>> expand_counts("4(x2),3")
    [4, 4, 3]
    """
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,6})\))?", part.strip())
        if found is None:
            raise ConfigError(f"Slurm's tasks per node must look like 4(x2),3, got {text!r}")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _port(environ: CheckedEnviron) -> int:
    """Return the port of a machine's first server; its other servers use the next ports."""
    variable = environ.get("SPARSEFLEET_PORT")
    return (
        variable.integer(low=1, below=(2**16 - 1, "the last port")) if variable else _DEFAULT_PORT
    )
