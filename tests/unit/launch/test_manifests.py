"""Manifests match their schemas, and contain what a job needs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from tests.support.kubernetes_schemas import Document, check, checked_documents

from sparsefleet.cli.main import main, make_parser
from sparsefleet.errors import ConfigError
from sparsefleet.fleet import role_from_environment
from sparsefleet.launch.manifests import (
    ManifestConfig,
    TaskShape,
    jobset_yaml,
    memory_bytes,
    rayjob_yaml,
    slurm_script,
    trainjob_yaml,
)
from sparsefleet.launch.manifests.pods import to_yaml

CONFIG = ManifestConfig(
    name="ads",
    script="/app/train.py",
    arguments=("--epochs", "3", "--note", 'a "b" $c $(d): #'),
    servers=TaskShape(count=2, cpus=4, memory=16 << 30),
    workers=TaskShape(count=3, cpus=8, memory=6 << 30),
    image="registry/ads:1",
    environment=(("OMP_NUM_THREADS", "1"),),
)
WRITERS: dict[str, Callable[[ManifestConfig], str]] = {
    "jobset": jobset_yaml,
    "trainjob": trainjob_yaml,
    "rayjob": lambda config: rayjob_yaml(config, "2.60.0"),
}


def jobs_of(kind: str, config: ManifestConfig = CONFIG) -> tuple[Document, Document]:
    """Return the jobs of servers and of workers."""
    found = checked_documents(WRITERS[kind](config))
    spec = found["JobSet"]["spec"] if kind == "jobset" else None
    spec = spec or found["TrainingRuntime"]["spec"]["template"]["spec"]
    servers, workers = spec["replicatedJobs"]
    return servers["template"]["spec"], workers["template"]["spec"]


def container_of(job: Document) -> Document:
    (found,) = job["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("native", [False, True])
def test_yaml_fits_the_published_schemas(kind: str, native: bool) -> None:
    config = replace(CONFIG, native_servers=native, storage_class="nfs", port=7000)
    found = checked_documents(WRITERS[kind](config))
    assert found["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert len(found) == (3 if kind == "trainjob" else 2)


def check_all(documents: list[Document]) -> None:
    for document in documents:
        check(document)


@pytest.mark.parametrize("kind", ["jobset", "rayjob"])
def test_schemas_reject_unknown_fields_at_every_level(kind: str) -> None:
    def spoil(value: Any, path: tuple[str, ...] = ()) -> None:
        if isinstance(value, dict) and path[-1:] in (("spec",), ("resources",), ("network",)):
            value["notAField"] = 1
            with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
                check_all(documents)
            del value["notAField"]
            spoiled.append(path)
        inner = value.items() if isinstance(value, dict) else ()
        for key, entry in inner:
            spoil(entry, (*path, key))
        for entry in value if isinstance(value, list) else ():
            spoil(entry, path)

    documents = list(yaml.safe_load_all(WRITERS[kind](CONFIG)))
    spoiled: list[tuple[str, ...]] = []
    for document in documents:
        spoil(document)
    assert len(spoiled) > 5


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_pods_know_their_role_from_what_the_manifest_injects(kind: str) -> None:
    servers, workers = jobs_of(kind)
    workers_job = "workers" if kind == "jobset" else "node"
    for job, role, own in ((servers, "server", "servers"), (workers, "worker", workers_job)):
        labels = {
            "metadata.labels['jobset.sigs.k8s.io/jobset-name']": "ads",
            "metadata.labels['jobset.sigs.k8s.io/jobset-uid']": "6f",
            "metadata.labels['jobset.sigs.k8s.io/replicatedjob-name']": own,
        }
        environ = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": f"ads-{own}-0-1"}
        for entry in container_of(job)["env"]:
            source = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            environ[entry["name"]] = labels[source] if source else entry["value"]
        found = role_from_environment(environ)
        assert (found.kind, found.index, found.worker_num) == (role, 1, 3)
        assert found.server_endpoints == ("ads-servers-0-0.ads:9100", "ads-servers-0-1.ads:9100")
        assert environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_only_what_died_restarts_and_errors_end_the_job(kind: str) -> None:
    servers, workers = jobs_of(kind)
    assert servers["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert workers["template"]["spec"]["restartPolicy"] == "Never"
    assert workers["backoffLimitPerIndex"] == 20
    evicted, failed = workers["podFailurePolicy"]["rules"]
    assert evicted["action"] == "Ignore"
    assert failed["action"] == "FailJob"
    assert failed["onExitCodes"]["containerName"] == container_of(workers)["name"]
    assert {75, 137} <= set(failed["onExitCodes"]["values"])
    assert 1 not in failed["onExitCodes"]["values"]  # NotIn: an error of the script
    for job in (servers, workers):
        assert job["completionMode"] == "Indexed"
        assert job["template"]["spec"]["terminationGracePeriodSeconds"] == 60


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_servers_have_probes_on_their_port_a_state_of_their_job_and_the_key(kind: str) -> None:
    servers, workers = jobs_of(kind, replace(CONFIG, port=7000))
    server = container_of(servers)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[probe]["tcpSocket"] == {"port": 7000}
        assert probe not in container_of(workers)
    assert server["resources"]["requests"] == {"cpu": "4", "memory": "16384Mi"}
    mounts = {mount["mountPath"]: mount for mount in server["volumeMounts"]}
    assert mounts["/state"]["subPathExpr"] == "$(JOBSET_UID)"
    assert mounts["/var/run/sparsefleet"]["readOnly"]
    key, state = servers["template"]["spec"]["volumes"]
    assert key["secret"] == {"secretName": "ads-key", "defaultMode": 0o440}
    assert state["persistentVolumeClaim"] == {"claimName": "ads-state"}


def test_a_rayjob_survives_the_loss_of_a_node_with_replicas(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["manifest", "rayjob", "--image=ads:1", "--durability=replica"]
    assert main([*words, "--servers=2", "train.py"]) == 0
    assert "--durability replica" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="needs at least 2 servers"):
        WRITERS["rayjob"](replace(CONFIG, durability="replica", servers=TaskShape(count=1)))
    for kind in ("jobset", "trainjob"):
        with pytest.raises(ConfigError, match="durability must be process or disk"):
            WRITERS[kind](replace(CONFIG, durability="replica"))
    with pytest.raises(ConfigError, match="durability must be process or disk"):
        slurm_script(replace(CONFIG, durability="replica"))


@pytest.mark.parametrize("kind", WRITERS)
def test_arguments_reach_the_script_unchanged(kind: str) -> None:
    found = checked_documents(WRITERS[kind](CONFIG))
    if kind == "rayjob":
        entrypoint = found["RayJob"]["spec"]["entrypoint"]
        words = subprocess.run(
            ["bash", "-c", f"printf '%s\\n' {entrypoint}"], capture_output=True, text=True
        ).stdout.splitlines()
        assert words[:4] == ["sparsefleet", "launch", "--on", "ray"]
        assert words[-5:] == ["/app/train.py", *CONFIG.arguments]
        options = make_parser().parse_args(words[1:])
        assert (options.on, options.servers, options.workers) == ("ray", 2, 3)
        assert (options.server_cpus, options.worker_cpus) == (4, 8)
        assert options.arguments == list(CONFIG.arguments)
        return
    # Kubernetes replaces $(NAME) in a command, and $$(NAME) by $(NAME).
    words = [text.replace("$(", "$$(") for text in CONFIG.arguments]
    command = ["python", "-u", "/app/train.py", *words]
    assert container_of(jobs_of(kind)[1])["command"] == command
    if kind == "trainjob":
        assert found["TrainJob"]["spec"]["trainer"]["command"] == command
        assert found["TrainJob"]["spec"]["runtimeRef"]["name"] == "ads-runtime"


def test_yaml_text_is_read_back_as_it_was() -> None:
    texts = ["", "on", "1", "a b", "1e3", "0o7", "~", "- x", "a: b", "#", "\n", "é", "$(X)", "/a-b"]
    value = {
        "texts": texts,
        "none": [],
        "map": {},
        "n": 3,
        "yes": True,
        "deep": [{"a": [{"b": 1}]}],
    }
    assert yaml.safe_load(to_yaml(value)) == value


def test_slurm_script_is_valid_bash_and_has_both_components() -> None:
    text = slurm_script(replace(CONFIG, image="", directives=("--partition=cpu",)))
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    first, second = text.split("#SBATCH hetjob\n")
    assert "#SBATCH --ntasks=2\n" in first
    assert "#SBATCH --ntasks=3\n" in second
    assert text.count("#SBATCH --partition=cpu\n") == 2
    assert "#SBATCH --mem-per-cpu=4096M" in first
    assert "#SBATCH --signal=B:TERM@60" in first
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-s", "bash", "-"], input=text, text=True, check=True)


def test_slurm_ports_are_below_those_that_systems_give_to_connections() -> None:
    """Linux takes 32768 and up for outgoing connections, any of which may be in use."""
    (line,) = re.findall(r"^export SPARSEFLEET_PORT=.*$", slurm_script(CONFIG), re.MULTILINE)
    jobs = (1, 749, 750, 1249, 123_457)
    shown = "; ".join(f"SLURM_JOB_ID={job}; {line}; echo $SPARSEFLEET_PORT" for job in jobs)
    ports = subprocess.run(["bash", "-c", shown], capture_output=True, text=True).stdout.split()
    assert len(ports) == len(jobs)
    assert all(20_000 <= int(port) <= 32_768 - 16 for port in ports)


def test_slurm_restarts_what_was_killed_and_not_what_failed(tmp_path: Path) -> None:
    text = slurm_script(replace(CONFIG, image="", max_restarts=2))
    again = text[text.index("again() {") : text.index("export -f again")]
    (tmp_path / "task.sh").write_text(
        "echo run >> runs\n"
        "[[ $1 == KILL ]] && kill -9 $$\n"
        "if [[ $1 == NOTICE ]]; then\n"
        "  trap 'exit 75' TERM\n"
        "  kill -TERM $PPID\n"
        "  while :; do sleep 0.02; done\n"
        "fi\n"
        "[[ $1 == STARTING ]] && kill -TERM $PPID && exec sleep 60\n"
        "exit $1\n"
    )
    for kind, what, code, runs in (
        ("worker", "0", 0, 1),
        ("worker", "3", 3, 1),
        ("worker", "KILL", 137, 3),
        ("server", "3", 3, 3),
        ("worker", "75", 75, 1),
        ("worker", "NOTICE", 0, 1),
        ("worker", "STARTING", 0, 1),
        ("server", "STARTING", 0, 1),
    ):
        (tmp_path / "runs").unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", "-uc", f"{again}\nagain {kind} bash task.sh {what}"],
            cwd=tmp_path,
            env={
                "SPARSEFLEET_LOG_DIR": str(tmp_path),
                "SLURMD_NODENAME": "n1",
                "SLURM_LOCALID": "0",
                "SLURM_PROCID": "0",
                "PATH": "/usr/bin:/bin",
            },
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        assert len((tmp_path / "runs").read_text().split()) == runs, (kind, what)
        stopped = [path.name for path in tmp_path.glob("stopped-*")]
        assert stopped == [f"stopped-{kind}"] * (what in ("NOTICE", "STARTING"))
        for name in stopped:
            (tmp_path / name).unlink()


def test_slurm_does_not_start_a_worker_after_notice(tmp_path: Path) -> None:
    text = slurm_script(replace(CONFIG, image=""))
    again = text[text.index("again() {") : text.index("export -f again")]
    (tmp_path / "notice").touch()
    place = {"SPARSEFLEET_LOG_DIR": str(tmp_path), "SLURMD_NODENAME": "n1", "SLURM_LOCALID": "0"}
    words = ["bash", "-uc", f"{again}\nagain worker touch started"]
    subprocess.run(words, cwd=tmp_path, env={**os.environ, **place}, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notice", "stopped-worker"]


def run_slurm_script(
    tmp_path: Path, programs: dict[str, str], **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the batch script with shell scripts in place of Slurm's programs."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(slurm_script(replace(CONFIG, image="", native_servers=True)))
    numbers = {"SLURM_JOB_ID_HET_GROUP_0": "7", "SLURM_JOB_ID_HET_GROUP_1": "8"}
    place = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **numbers, **environ}
    return subprocess.run(
        ["bash", "job.sh"], cwd=tmp_path, env=place, capture_output=True, text=True
    )


def test_slurm_gives_notice_again_to_a_step_that_was_starting(tmp_path: Path) -> None:
    programs = {
        "srun": "case $* in *server*) kind=server;; *) kind=worker;; esac\n"
        "echo $$ > draft-$kind && mv draft-$kind $kind; [[ $kind == worker ]] && kill -TERM $PPID\n"
        "trap '[[ $kind == worker ]] && touch sparsefleet-state/7/stopped-worker; exit' TERM\n"
        "while :; do sleep 0.02; done",
        "scancel": "[[ $* == *8 ]] && kind=worker || kind=server\n"
        "mkdir missed-$kind 2>/dev/null || kill $(cat $kind)",
        "squeue": "echo RUNNING",
        "scontrol": "echo $* >> requeued",
    }
    done = run_slurm_script(tmp_path, programs)
    assert "ended with 75; requeued" in done.stderr
    assert (tmp_path / "missed-worker").exists()
    assert (tmp_path / "missed-server").exists()
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


def test_slurm_requeues_killed_workers_unless_their_loop_would_begin_again(tmp_path: Path) -> None:
    programs = {
        "srun": "case $* in *server*) sleep 60 & pid=$!; echo $pid > server; wait;;"
        " *) while [[ ! -s server ]]; do :; done; eval $WORKER; exit 137;; esac",
        "scancel": "[[ $* == *TERM* ]] && kill $(cat server) && rm server",
        "squeue": "echo RUNNING",
        "scontrol": "echo $* >> requeued",
    }

    def run(worker: str) -> subprocess.CompletedProcess[str]:
        return run_slurm_script(tmp_path, programs, WORKER=worker)

    killed = run("")
    assert killed.returncode == 137, killed.stderr
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    looping = run('touch "$SPARSEFLEET_LOG_DIR/own-loop-n1-0"')
    assert looping.returncode == 137
    assert "not requeued: a worker trained in a custom loop" in looping.stderr
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    again = run("")  # as Slurm itself requeues a job that has lost a node
    assert again.returncode == 1
    assert "would start over" in again.stderr
    assert not (tmp_path / "server").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "Ads_1"}, "name must be at most 40 lower-case letters"),
        ({"durability": "off"}, "durability must be process or disk"),
        ({"port": 70000}, "port must be an int"),
        ({"state_size": "20"}, "a memory size must look like 8GiB"),
        ({"directives": ("partition=cpu",)}, "directives must be options such as"),
        ({"setup": ("a\nb",)}, "must be a single line"),
        ({"environment": (("a b", "c"),)}, "environment must be variable names"),
        ({"environment": (("ü", "c"),)}, "environment must be variable names"),
        ({"environment": (("SPARSEFLEET_JOB_KEY", "c"),)}, "anyone who reads the manifest"),
        ({"script": ""}, "script must be the path"),
    ],
)
def test_wrong_settings_are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **changed)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "2024-ads"}, "name must start with a letter"),
        ({"image": ""}, "image must be an image name"),
        ({"image": "registry/my ads:1"}, "image must be an image name"),
        ({"key_secret": "My_Key"}, "key_secret must be lower-case letters"),
        ({"storage_class": "Fast"}, "storage_class must be lower-case letters"),
    ],
)
def test_names_that_kubernetes_would_reject_are_named(
    kind: str, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        WRITERS[kind](replace(CONFIG, **changed))


@pytest.mark.parametrize(
    ("size", "written"), [("20GiB", "20Gi"), ("1.5T", "1536Gi"), ("512 mb", "512Mi")]
)
def test_sizes_are_written_as_kubernetes_reads_them(size: str, written: str) -> None:
    found = checked_documents(jobset_yaml(replace(CONFIG, state_size=size)))
    claimed = found["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"]
    assert claimed == written


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_variables_reach_the_processes_unchanged(kind: str) -> None:
    """Kubernetes would replace $(NAME) by the value of another variable."""
    config = replace(CONFIG, environment=(("NOTE", 'a "b"\n$(HOME) $c: #'),))
    for job in jobs_of(kind, config):
        values = {one["name"]: one.get("value") for one in container_of(job)["env"]}
        assert values["NOTE"] == 'a "b"\n$$(HOME) $c: #'


@pytest.mark.parametrize("text", ["8", "GiB", "-8G", "8X", "0G", ""])
def test_wrong_memory_sizes_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="a memory size must look like 8GiB or 512M"):
        memory_bytes(text)


@pytest.mark.parametrize("kind", ["slurm", *WRITERS])
def test_command_writes_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    (tmp_path / "train.py").touch()
    out = tmp_path / "job"
    words = ["manifest", kind, "--servers", "2", "--workers", "3", "--server-memory", "2GiB"]
    words += [] if kind == "slurm" else ["--image", "x:1"]
    assert main([*words, "-o", str(out), str(tmp_path / "train.py"), "--servers", "9"]) == 0
    assert "start the job with" in capsys.readouterr().err
    assert "2 servers and 3 workers" in out.read_text()
    assert main([*words, str(tmp_path / "train.py"), "--servers", "9"]) == 0
    assert capsys.readouterr().out == out.read_text()


def test_the_command_to_start_a_job_can_be_pasted_into_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = tmp_path / "train.py", tmp_path / "my job.sh"
    script.touch()
    words = ["manifest", "slurm", "--servers=1", "--workers=1", "-o", str(out), str(script)]
    assert main(words) == 0
    command = capsys.readouterr().err.partition("start the job with: ")[2]
    assert shlex.split(command) == ["sbatch", str(out)]


def test_an_output_file_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = tmp_path / "train.py", tmp_path / "missing" / "job.sh"
    script.touch()
    words = ["manifest", "slurm", "--servers=1", "--workers=1", "-o", str(out), str(script)]
    with pytest.raises(SystemExit):
        main(words)
    said = capsys.readouterr().err
    assert f"--output {str(out)!r} cannot be written: No such file or directory" in said


def test_command_names_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["slurm", "nowhere.py"], "script 'nowhere.py' does not exist"),
        (["jobset", "train.py"], "the following arguments are required: --image"),
        (["jobset", "--image=x", "--servers=0", "train.py"], "--servers must be at least 1, got 0"),
        (
            ["jobset", "--image=x", "--workers=0", "train.py"],
            "--workers must be at least 1, got 0; workers run the script",
        ),
        (["jobset", "--image=x", "--env=A", "train.py"], "--env must be NAME=VALUE"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["manifest", *words])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
