"""The batch script for a Slurm job."""

from __future__ import annotations

import math
import shlex

from sparsefleet.launch.manifests.manifest_config import ManifestConfig, TaskShape
from sparsefleet.launch.restarts import START_ELSEWHERE

__all__ = ["slurm_script"]

_QUICK_S = 10
_MOST_QUICK = 3
_BY_SIGTERM = 143

_AGAIN = """\
# Runs a task, and restarts it if it was killed (or, for a server, if it failed), so that only dead
# processes restart. The job ends if the script raises an error, or if a process fails right after
# its start three times in a row. A worker that ends after a notice counts as done, because Slurm
# would otherwise kill the other workers. It may not have handed over, since the signal kills a
# process that is starting or already ending.
again() {{
  local kind=$1 stopping= left={max_restarts} quick=0 began code pid=
  shift
  export SPARSEFLEET_OWN_LOOP_FILE="$SPARSEFLEET_LOG_DIR/own-loop-$SLURMD_NODENAME-$SLURM_LOCALID"
  trap 'stopping=1; [[ -z $pid ]] || kill -TERM "$pid"' TERM
  while :; do
    began=$SECONDS pid= code={terminated}
    if [[ $kind == server || ! -e $SPARSEFLEET_LOG_DIR/notice ]]; then
      "$@" & pid=$!
      [[ -z $stopping ]] || kill -TERM "$pid"
      wait "$pid"
      while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
      wait "$pid"; code=$?  # its own, even if a signal interrupted the others
    fi
    [[ $kind == worker && -e $SPARSEFLEET_LOG_DIR/notice ]] && stopping=1
    if [[ -n $stopping && $kind$code =~ ^(server0|.*({handed_over}|{terminated}))$ ]]; then
      touch "$SPARSEFLEET_LOG_DIR/stopped-$kind"
      return 0
    fi
    [[ $code -eq 0 || -n $stopping ]] && return "$code"
    [[ $kind == worker && $code -le 128 ]] && return "$code"
    if [[ $kind == worker && -e $SPARSEFLEET_OWN_LOOP_FILE ]]; then
      echo "not restarted: this worker trains in a custom loop, which would start over" >&2
      return "$code"
    fi
    if (( code != 137 && SECONDS - began < {quick_s} )); then quick=$((quick + 1)); else quick=0; fi
    (( quick >= {most_quick} || left-- <= 0 )) && return "$code"
    echo "$kind on $SLURMD_NODENAME (task $SLURM_PROCID) ended with $code; restarted alone" >&2
  done
}}
export -f again
"""

_BODY = """\
# A directory on shared storage for logs, the servers' state and the key. Its name stays the same
# when Slurm requeues the job, which then continues where it was.
state={state_dir}/$SLURM_JOB_ID
mkdir -p "$state"
export SPARSEFLEET_LOG_DIR=$(cd "$state" && pwd)
has_own_loop() {{ compgen -G "$SPARSEFLEET_LOG_DIR/own-loop-*" > /dev/null; }}
if has_own_loop; then
  echo "not continued: a worker trained in a custom loop, which would start over on top of" \
    "what the servers have applied; submit the script again" >&2
  exit 1
fi
if [[ -z ${{SPARSEFLEET_JOB_KEY:-}} && -z ${{SPARSEFLEET_JOB_KEY_FILE:-}} ]]; then
  chmod 700 "$state"
  export SPARSEFLEET_JOB_KEY_FILE=$SPARSEFLEET_LOG_DIR/job.key
  if [[ ! -s $SPARSEFLEET_JOB_KEY_FILE ]]; then
    (umask 077; od -An -vtx1 -N32 /dev/urandom | tr -d ' \\n' > "$SPARSEFLEET_JOB_KEY_FILE")
  fi
fi
# Processes read their role from Slurm's variables; see docs/env.md.
export SPARSEFLEET_JOB_ID=slurm-$SLURM_JOB_ID
export SPARSEFLEET_PORT={port}
export SPARSEFLEET_DURABILITY={durability}
export SPARSEFLEET_TRANSPORT={transport}
export SPARSEFLEET_STATE_KEPT=1
export SPARSEFLEET_FAILOVER_WAIT_S=${{SPARSEFLEET_FAILOVER_WAIT_S:-300}}
export PYTHONUNBUFFERED=1
{environment}
{again}
logs=$SPARSEFLEET_LOG_DIR
rm -f "$logs/notice" "$logs"/stopped-*
# srun does not inherit the CPUs of a task (since Slurm 22.05), and takes the memory of component 0.
size_of() {{
  local cpus=SLURM_CPUS_PER_TASK_HET_GROUP_$1 memory=SLURM_MEM_PER_CPU_HET_GROUP_$1
  [[ -z ${{!cpus:-}} ]] || echo "--cpus-per-task=${{!cpus}}"
  [[ -z ${{!memory:-}} ]] || echo "--mem-per-cpu=${{!memory}}"
}}
options="--kill-on-bad-exit=1 --open-mode=append --mpi=none"
srun --het-group=0 $(size_of 0) $options --output="$logs/serverlog.%t" \\
  bash -c 'again "$@"' again server {server_command} &
servers=$!
srun --het-group=1 $(size_of 1) $options --output="$logs/workerlog.%t" \\
  bash -c 'again "$@"' again worker {worker_command} &
workers=$!

# Signals component $1 until its srun, process $2, has ended; a starting step may miss a signal.
terminate() {{
  local pause=1
  while kill -0 "$2" 2>/dev/null; do
    scancel --signal=TERM "$1"
    sleep "$pause"; pause=$((pause * 2))
  done > /dev/null 2>&1
}}

# Runs before the time limit, and when the job is preempted: workers hand over while the servers are
# still running. The file is created before any signal, for tasks that cannot receive one yet.
give_notice() {{
  trap '' TERM
  touch "$logs/notice"
  terminate "$SLURM_JOB_ID_HET_GROUP_1" "$workers" &
}}
trap give_notice TERM
[[ -z $noticed ]] || give_notice

await() {{  # returns the exit code of a background process, even if signals interrupt the wait
  wait "$1"
  while kill -0 "$1" 2>/dev/null; do wait "$1"; done
  wait "$1"
}}

while kill -0 "$servers" 2>/dev/null && kill -0 "$workers" 2>/dev/null; do
  wait -n "$servers" "$workers"
done
if kill -0 "$workers" 2>/dev/null; then
  await "$servers"; code=$?
  echo "the servers ended before the workers, with exit code $code" >&2
  scancel --signal=KILL "$SLURM_JOB_ID_HET_GROUP_1"
  await "$workers"
  if (( code == 0 )); then  # servers end only on a signal, so Slurm itself has notified all steps
    [[ -e $logs/stopped-server ]] && code={handed_over} || code=1
  fi
else
  await "$workers"; code=$?
  [[ $code -eq 0 && -e $logs/stopped-worker ]] && code={handed_over}
  [[ $code -eq {terminated} && -e $logs/notice ]] && code={handed_over}  # before `again` began
  terminate "$SLURM_JOB_ID_HET_GROUP_0" "$servers" &
  await "$servers"
fi

if (( code == 0 )); then
  rm -rf "$SPARSEFLEET_LOG_DIR"/server-[0-9]* "$SPARSEFLEET_LOG_DIR/job.key"
  exit 0
fi
# If a step was killed or workers handed over on notice, requeue the job, which then continues from
# its state. An error in the script ends the job; so does scancel, after which it is not running.
is_running=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T | grep -c RUNNING)
left=$(( {max_restarts} - ${{SLURM_RESTART_COUNT:-0}} ))
if (( (code > 128 || code == {handed_over}) && is_running && left > 0 )); then
  if has_own_loop; then
    echo "ended with $code; not requeued: a worker trained in a custom loop" >&2
    exit "$code"
  fi
  echo "ended with $code; requeued" >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def slurm_script(config: ManifestConfig) -> str:
    """Return a script for `sbatch`; component 0 of the job holds servers, component 1 workers."""
    config.require_durability("process", "disk")
    lines = [
        "#!/bin/bash",
        f"# {config.servers.count} servers and {config.workers.count} workers; submit with sbatch.",
        f"#SBATCH --job-name={config.name}",
        "#SBATCH --output=%x-%j.out",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        f"#SBATCH --signal=B:TERM@{config.grace_s}",
        *_component(config, config.servers),
        "#SBATCH hetjob",
        *_component(config, config.workers),
        "",
        "noticed=",
        "trap 'noticed=1' TERM  # until there are processes to notify",
        *config.setup,
    ]
    environment = [f"export {name}={shlex.quote(text)}" for name, text in config.environment]
    body = _BODY.format(
        state_dir=shlex.quote(config.state_dir),
        port=config.port or "$((20000 + SLURM_JOB_ID * 16 % 12000))",
        durability=config.durability,
        transport=config.transport,
        environment="\n".join(environment),
        again=_AGAIN.format(
            max_restarts=config.max_restarts,
            quick_s=_QUICK_S,
            most_quick=_MOST_QUICK,
            handed_over=START_ELSEWHERE,
            terminated=_BY_SIGTERM,
        ),
        handed_over=START_ELSEWHERE,
        terminated=_BY_SIGTERM,
        server_command=_in_image(config, config.server_command),
        worker_command=_in_image(config, config.script_command),
        max_restarts=config.max_restarts,
    )
    return "\n".join(lines) + "\n" + body


def _component(config: ManifestConfig, tasks: TaskShape) -> list[str]:
    per_cpu = math.ceil(tasks.memory / tasks.cpus / 2**20)
    options = [
        f"--ntasks={tasks.count}",
        f"--cpus-per-task={tasks.cpus}",
        f"--mem-per-cpu={per_cpu}M",
    ]
    if tasks.per_node:
        options.append(f"--ntasks-per-node={tasks.per_node}")
    return [f"#SBATCH {option}" for option in (*options, *config.directives)]


def _in_image(config: ManifestConfig, command: tuple[str, ...]) -> str:
    prefix = ("apptainer", "exec", config.image) if config.image else ()
    return shlex.join((*prefix, *command))
