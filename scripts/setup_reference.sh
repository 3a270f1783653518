#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# setup_reference.sh FOLDER VERSION...: unpacks the reference connector's package (vllm-ascend) of each version to FOLDER/VERSION,
# unmodified, for the interoperability tests. Costs nothing when it is there already.
set -euo pipefail
folder=${1:?usage: setup_reference.sh FOLDER VERSION...}; shift
mkdir -p "$folder"
folder=$(readlink -f "$folder")
part=vllm_ascend/distributed/kv_transfer/kv_p2p/sfa_pd_rd2h

for version in "$@"; do
  [ -d "$folder/$version/$part" ] && continue
  echo "reference $version: downloading"
  if [ ! -x "$folder/venv/bin/pip" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install -q 'setuptools<80' setuptools_scm wheel 2>&1 | { grep -v 'is ignored' || true; }
  fi
  rm -rf "$folder/download" "$folder/$version.part"
  # Newer versions come as source only; their metadata step wants to know a chip and must not build kernels.
  SOC_VERSION=ascend910b1 COMPILE_CUSTOM_KERNELS=0 "$folder/venv/bin/pip" download -q --no-deps --no-build-isolation \
    -d "$folder/download" "vllm-ascend==$version" 2>&1 | { grep -v 'is ignored' || true; }
  mkdir -p "$folder/$version.part"
  package=$(find "$folder/download" -type f | head -n 1)
  case "$package" in
    *.whl) (cd "$folder/$version.part" && python3 -m zipfile -e "$package" .) ;;
    *.tar.gz) tar -xzf "$package" -C "$folder/$version.part" --strip-components=1 ;;
    *) echo "reference $version: nothing was downloaded" >&2; exit 1 ;;
  esac
  [ -d "$folder/$version.part/$part" ] || { echo "reference $version: $part is missing in the package" >&2; exit 1; }
  rm -rf "$folder/download"
  mv "$folder/$version.part" "$folder/$version"
done
