#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python wheel into dist/, when something that goes into it has changed. It links the libzmq, libcurl and libjansson of
# this machine and runs where these are installed: build it where it is used.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/bootstrap.sh
key=$(find include src engines python scripts/make_cdef.py scripts/version.sh meson.build meson.options pyproject.toml \
  README.md LICENSE .venv/stamp -type f -not -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1)
if [ "$(cat dist/stamp 2>/dev/null)" = "$key" ] && compgen -G 'dist/rd2h-*.whl' >/dev/null; then
  exit 0
fi
mkdir -p dist
rm -f dist/stamp dist/rd2h-*.whl
printf 'wheel: building\n'
# The build folder stays, so that the next time compiles only what changed.
PATH=$PWD/.venv/bin:$PATH .venv/bin/pip wheel --quiet --no-deps --no-build-isolation --disable-pip-version-check \
  --config-settings=build-dir=build-wheel -w dist . >dist/wheel.log 2>&1 || { cat dist/wheel.log; exit 1; }
rm -f dist/wheel.log
printf '%s\n' "$key" >dist/stamp
printf 'wheel: %s\n' dist/rd2h-*.whl
