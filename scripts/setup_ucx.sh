#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes build-ucx/libucx: a UCX that engine ucx takes, from the package registry (150 MB), for tests and benchmarks. Where it cannot be
# had it says why and ends well: what needs it is skipped by name. setup_ucx.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
package=libucx-cu12==1.22.0
folder=${1:-build-ucx}
stamp=$folder/stamp

[ "$(cat "$stamp" 2>/dev/null)" != "$package" ] || exit 0
exec 9<scripts
flock 9
[ "$(cat "$stamp" 2>/dev/null)" != "$package" ] || exit 0
rm -rf "$folder"
if ! .venv/bin/pip install --quiet --quiet --disable-pip-version-check --no-deps --target "$folder" "$package"; then
  echo "setup: $package cannot be installed: engine ucx will not be tested" >&2
  exit 0
fi
printf '%s\n' "$package" >"$stamp"
