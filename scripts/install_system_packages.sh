#!/usr/bin/env bash
# Installs what PyPI does not have: OpenSSL's headers and a compiler for the build,
# redis-server for tests and `make bench`, a browser for tests of web pages, Prometheus for tests of metrics, clang for
# `make fuzz` and the lock check of `make lint`, Slurm for tests of its jobs. Debian and Ubuntu. With arguments: only the packages they name.
set -euo pipefail

packages=(g++ make libssl-dev python3-dev python3-venv redis-server chromium chromium-driver clang prometheus
  munge slurmctld slurmd slurm-client)
if [[ $# -gt 0 ]]; then
  packages=("$@")
fi

if ! command -v apt-get >/dev/null; then
  echo "No apt-get here. Install with your package manager: ${packages[*]}" >&2
  exit 1
fi

as_root=()
if [[ $EUID -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "Run this as root: neither root nor sudo." >&2
    exit 1
  fi
  as_root=(sudo)
fi

"${as_root[@]}" apt-get update
# With what clang recommends: the sanitizers' and libFuzzer's libraries are among that.
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y "${packages[@]}"
