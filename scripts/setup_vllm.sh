#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes .venv-vllm: vLLM for CPU (tests/e2e/requirements.txt), the sparse attention plugin of the tests, and our wheel as it is now.
# About two minutes and 2 GB the first time; afterwards only what changed.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/wheel.sh

venv=.venv-vllm
plugin=tests/e2e/cpu_sparse
say() { printf 'setup: %s\n' "$*"; }
# Bytecode is compiled at installation: without it every import of vLLM costs more than a minute. (A few files of the packages are
# templates and no Python: they are left out.)
unset PYTHONDONTWRITEBYTECODE
pip() { "$venv/bin/pip" --quiet --quiet --disable-pip-version-check "$@"; }
digest() { cat "$@" | sha256sum | cut -d' ' -f1; }
done_before() { [ "$(cat "$venv/$1.stamp" 2>/dev/null)" = "$2" ]; }

key=$(digest tests/e2e/requirements.txt .venv/stamp)
if ! done_before vllm "$key"; then
  say "installing vLLM for CPU into $venv (about two minutes, 2 GB)"
  rm -rf "$venv"
  "$(.venv/bin/python -c 'import os, sys; print(os.path.realpath(sys._base_executable))')" -m venv "$venv"
  pip install --no-deps --no-compile -r tests/e2e/requirements.txt
  "$venv/bin/python" -m compileall -qq -j 0 "$venv"/lib/python3*/site-packages || true
  printf '%s\n' "$key" >"$venv/vllm.stamp"
fi

if [ -f "$plugin/pyproject.toml" ]; then
  mapfile -d '' files < <(find "$plugin" -type f \( -name '*.py' -o -name '*.toml' \) -print0 | LC_ALL=C sort -z)
  key=$(digest "${files[@]}")
  if ! done_before plugin "$key"; then
    say "installing the CPU sparse attention plugin"
    # From a copy: setuptools leaves build folders beside the sources.
    copy=$(mktemp -d)
    trap 'rm -rf "$copy"' EXIT
    cp -r "$plugin" "$copy/plugin"
    pip install --no-deps --no-build-isolation --force-reinstall "$copy/plugin"
    printf '%s\n' "$key" >"$venv/plugin.stamp"
  fi
fi

key=$(cat dist/stamp)
if ! done_before wheel "$key"; then
  pip install --no-deps --force-reinstall dist/rd2h-*.whl
  printf '%s\n' "$key" >"$venv/wheel.stamp"
fi
