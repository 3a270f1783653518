#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build.sh VARIANT [TARGET...]: configures (once) and builds one of the build folders:
#   release  build/        optimised, warnings are errors
#   asan     build-asan/   AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan     build-tsan/   ThreadSanitizer, with a libzmq built for it
#   fuzz     build-fuzz/   libFuzzer targets (clang), AddressSanitizer and UndefinedBehaviorSanitizer
set -euo pipefail
cd "$(dirname "$0")/.."
variant=${1:?variant: release, asan, tsan or fuzz}
shift
scripts/bootstrap.sh
export PATH=$PWD/.venv/bin:$PATH

dir=build-$variant
# Sanitized code compiles in half of the time that -O2 -g takes; a report names functions and lines.
options=(-Dbuildtype=debugoptimized -Doptimization=1 -Dc_args=-g1)
targets=(meson-test-prereq rd2h) # what tests need
case $variant in
  release) dir=build options=(-Dbuildtype=release --werror) targets=() ;;
  asan) options+=(-Db_sanitize=address,undefined) ;;
  tsan)
    PKG_CONFIG_PATH=$(scripts/tsan_zmq.sh)${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    export PKG_CONFIG_PATH
    options+=(-Db_sanitize=thread) ;;
  fuzz)
    export CC=clang-14
    options+=(-Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false "-Dc_args=-g1 -fsanitize=fuzzer-no-link")
    targets=() ;;
  *) echo "build.sh: no variant \"$variant\": release, asan, tsan or fuzz" >&2; exit 2 ;;
esac
[ $# = 0 ] || targets=("$@")

key="$(meson --version) ${CC:-cc} ${PKG_CONFIG_PATH:-} ${options[*]}"
if [ "$(cat "$dir/stamp" 2>/dev/null)" != "$key" ]; then
  mkdir -p "$dir"
  printf 'build: all of %s/, a minute or two\n' "$dir"
  rm -rf "$dir/meson-private" "$dir/build.ninja"
  meson setup "$dir" "${options[@]}" >"$dir/setup.log" 2>&1 || { cat "$dir/setup.log"; exit 1; }
  printf '%s\n' "$key" >"$dir/stamp"
fi
ninja -C "$dir" --quiet "${targets[@]}"
