#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The wheel of dist/, installed into a fresh environment; its declarations against the public headers. TAP.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wheel=$(echo dist/rd2h-*.whl)

.venv/bin/python -m venv --without-pip "$work/venv"
# cffi from the build tools: nothing is fetched.
.venv/bin/pip --python "$work/venv/bin/python" install --quiet --quiet --no-deps --no-index "$wheel"
cp -r .venv/lib/python3*/site-packages/{cffi,_cffi_backend*,pycparser} "$(echo "$work"/venv/lib/python3*/site-packages)"
"$work/venv/bin/python" scripts/check_wheel.py "$wheel"
