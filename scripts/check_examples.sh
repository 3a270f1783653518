#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the release build into a staging folder and uses that copy as another project would: from outside the tree, through
# pkg-config alone. Every example is compiled, linked (shared and static) and run; <example>.expected is what it must print. TAP.
set -uo pipefail
cd "$(dirname "$0")/.."
top=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/stage
number=0 failed=0

# ok NAME COMMAND...: one case; what a failing command printed follows as comments.
ok() {
  local name=$1 output
  shift
  number=$((number + 1))
  if output=$("$@" 2>&1); then
    printf 'ok %d - %s\n' "$number" "$name"
  else
    failed=$((failed + 1))
    printf 'not ok %d - %s\n' "$number" "$name"
    printf '%s\n' "$output" | sed 's/^/# /'
  fi
}

install_copy() {
  .venv/bin/meson install -C build --no-rebuild --quiet --destdir "$stage"
  pc=$(find "$stage" -name rd2h.pc) && [ -n "$pc" ] || { echo "no rd2h.pc was installed"; return 1; }
  export PKG_CONFIG_PATH=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$stage
  libdir=${pc%/pkgconfig/*}
  # The staging folder is the root for rd2h alone: what it stands on is the machine's.
  read -ra cflags < <(pkg-config --cflags rd2h)
  read -ra libs < <(pkg-config --libs rd2h)
  read -ra below < <(PKG_CONFIG_SYSROOT_DIR='' pkg-config --libs libzmq libcurl jansson)
}

header_alone() {
  cc -x c -std=c11 -pedantic -Wall -Wextra -Werror -fsyntax-only "${cflags[@]}" "$1" &&
    g++ -x c++ -std=c++17 -pedantic -Wall -Wextra -Werror -fsyntax-only "${cflags[@]}" "$1"
}

compile() { cc -std=gnu17 -Wall -Wextra -Werror "$work/$1.c" "${cflags[@]}" -o "$work/$2" "${@:3}"; }

run_and_compare() {
  LD_LIBRARY_PATH=$libdir timeout 60 "$work/$2" >"$work/printed" && diff "$work/$1.expected" "$work/printed"
}

install_copy >"$work/log" 2>&1
ok "the build installs, with rd2h.pc" test -n "${libdir:-}" || exit 1
cat "$work/log"
cp examples/*.c examples/*.expected "$work"
cd "$work" || exit 1
for header in "$stage"/usr/local/include/rd2h/*.h; do
  ok "${header##*/} compiles alone, as C and C++" header_alone "$header"
done
for source in "$top"/examples/*.c; do
  name=$(basename "$source" .c)
  ok "$name links the shared library" compile "$name" "$name" "${libs[@]}"
  ok "$name prints what is expected" run_and_compare "$name" "$name"
  ok "$name links the static library" compile "$name" "$name-static" "$libdir/librd2h.a" "${below[@]}" -pthread
  ok "$name prints the same when static" run_and_compare "$name" "$name-static"
done
ok "rd2h --version answers from the installed copy" env LD_LIBRARY_PATH="$libdir" "$stage/usr/local/bin/rd2h" --version
printf '1..%d\n' "$number"
exit $((failed > 0))
