#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Debian's libzmq is not built for ThreadSanitizer: it hands memory over by means that TSan cannot see, and a correct program is
# accused. This builds the same source version with -fsanitize=thread, once, under build-tsan-zmq/; prints the folder of its .pc.
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD
work=$top/build-tsan-zmq
version=$(dpkg-query -W -f '${source:Version}' libzmq3-dev)
key="$work $version $(sha256sum <scripts/tsan_zmq.sh | cut -d' ' -f1)"

say() { printf 'tsan: %s\n' "$*" >&2; }

fetch_source() {
  # Package lists of our own: the machine's may name no source packages, and stay as they are.
  mkdir -p apt/lists/partial apt/sources
  local f
  for f in /etc/apt/sources.list.d/*.sources; do
    if grep -qi debian "$f" 2>/dev/null; then sed -E 's/^Types:.*/Types: deb-src/' "$f" >"apt/sources/${f##*/}"; fi
  done
  # One form is enough: the same source named in both is an error.
  compgen -G 'apt/sources/*' >/dev/null || for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    if grep -qi debian "$f" 2>/dev/null; then sed -nE 's/^deb /deb-src /p' "$f" >"apt/sources/${f##*/}.list"; fi
  done
  local opts=(-qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$PWD/apt/sources"
    -o Dir::State::Lists="$PWD/apt/lists" -o APT::Sandbox::User=)
  apt-get "${opts[@]}" update >&2
  apt-get "${opts[@]}" source "zeromq3=$version" >&2
}

if [ "$(cat "$work/stamp" 2>/dev/null)" != "$key" ]; then
  scripts/bootstrap.sh cmake dpkg-dev >&2
  say "building libzmq $version for ThreadSanitizer (once; about two minutes)"
  rm -rf "$work"
  mkdir -p "$work"
  cd "$work"
  fetch_source
  cmake -S zeromq3-*/ -B out -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS='-fsanitize=thread -g1 -O1' \
    -DCMAKE_CXX_FLAGS='-fsanitize=thread -g1 -O1' -DCMAKE_INSTALL_PREFIX="$work/prefix" -DCMAKE_INSTALL_LIBDIR=lib \
    -DBUILD_STATIC=OFF -DBUILD_TESTS=OFF -DWITH_PERF_TOOL=OFF -DWITH_DOCS=OFF -DENABLE_CPACK=OFF -DWITH_LIBSODIUM=ON \
    -DENABLE_CURVE=ON >cmake.log
  cmake --build out -j"$(nproc)" >>cmake.log 2>&1 || { tail -30 cmake.log >&2; exit 1; }
  cmake --install out >>cmake.log
  rm -rf out zeromq3* apt
  printf '%s\n' "$key" >stamp
fi
printf '%s\n' "$work/prefix/lib/pkgconfig"
