#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings a Debian 12 machine to where `make build` works: system packages that are missing, and .venv with the build tools.
# Safe to run at any time; the second time it only looks. Further package names may be given as arguments.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(gcc g++ make pkg-config binutils util-linux python3 libzmq3-dev libcurl4-openssl-dev libjansson-dev libcmocka-dev
  libmsgpack-dev libevent-dev libssl-dev clang-14 libclang-rt-14-dev "$@")

# One at a time.
exec 9<scripts
flock 9

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

missing_packages() {
  local have
  have=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^ii *//p') || true
  printf '%s\n' "$@" | grep -vxF -e "$have" || true
}

install_packages() {
  local root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing: $*. Run as root, or: apt-get install $*"
    root=(sudo)
  fi
  say "installing system packages: $*"
  # A third-party source that cannot be reached must not stop what Debian's own can give: install decides.
  "${root[@]}" apt-get update -qq || say "apt-get update reported errors; going on with the lists there are"
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
    die "apt-get could not install: $*"
}

command -v dpkg-query >/dev/null || die "this needs Debian 12 (or a relative with apt). Elsewhere install: ${packages[*]}"
mapfile -t missing < <(missing_packages "${packages[@]}")
[ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  die "$python is no Python 3.11 or newer; name one with PYTHON=/path/to/python3"
# Of a virtual environment (ours, too, when it is on PATH) the interpreter that it was made from.
python=$("$python" -c 'import os, sys; print(os.path.realpath(sys._base_executable))')
# A Debian interpreter keeps its headers and venv in packages of their own; others bring them along.
if [ "$python" = "$(readlink -f /usr/bin/python3)" ]; then
  mapfile -t missing < <(missing_packages python3-dev python3-venv)
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
fi

stamp=.venv/stamp
key=$( (cat scripts/requirements.txt; "$python" -VV; echo "$python") | sha256sum | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then
  exit 0
fi
say "making .venv with $(grep -c '==' scripts/requirements.txt) build tools (meson, ninja, meson-python, cffi)"
rm -rf .venv
"$python" -m venv .venv
# Bytecode is compiled now, once, instead of at every start.
env -u PYTHONDONTWRITEBYTECODE .venv/bin/pip install -qq --disable-pip-version-check --no-deps -r scripts/requirements.txt
printf '%s\n' "$key" >"$stamp"
say "ready: .venv/bin/meson $(.venv/bin/meson --version)"
