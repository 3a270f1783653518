#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom (docs/architecture.md): every #include of the sources is held against the tables below."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Room of src/ -> rooms that it may include, besides itself and the public headers.
ROOMS = {
    "base": "",
    "pool": "base device",
    "completion": "base",
    "device": "base",
    "wire": "base",
    "layout": "base",
    "plan": "base layout",
    "scheduler": "base layout plan",
    "protocol": "base wire layout plan",
    "engine": "base",
    "rendezvous": "base",
    "worker": "base device wire layout plan scheduler protocol engine rendezvous",
    "connector": "base device wire layout plan scheduler protocol engine rendezvous worker",
}
# Headers of a room that other rooms may include; <room>.h where nothing else is said.
FACES = {
    "base": "base.h fifo.h msgpack.h ready.h text.h",
    "scheduler": "scheduler.h step.h",
    "protocol": "protocol.h decode_machine.h prefill_machine.h",
}
# Pure rooms decide and do nothing: no sockets, threads, clocks or files, so only these standard headers.
PURE = {"wire", "layout", "plan", "scheduler", "protocol"}
PURE_SYSTEM = "assert ctype errno inttypes limits stdarg stdbool stddef stdint stdio stdlib string"
# Library header -> rooms (or top folders) that may use it.
LIBRARIES = {
    "openssl/evp.h": "cli",
    "zmq.h": "worker cli", # cli: the bare pair that bench pair measures beside
    "curl/curl.h": "rendezvous",
    "jansson.h": "scheduler rendezvous connector cli",
    "pthread.h": "base pool device engine rendezvous worker connector cli examples",
}
# Parts of the proxy: its files (without .c and .h) and the parts whose headers they may include, besides their own. What is in no
# other part is the program, which may include all.
PROXY = {
    "base": ("text clock", ""),
    "formats": ("json scan rope head sse", "base"),
    "flow": ("engines body flow flow_inner leg flow_decode flow_prefill rendezvous usage continue", "base formats"),
    "link": ("link resolve", "base"),
    "client": ("client client_inner peer connect answer", "base formats link"),
    "server": ("server server_inner conn respond", "base formats link"),
    "options": ("options", "base flow"),
}
PROXY_PURE = {"formats", "flow"}  # no sockets, clocks or files; arpa/inet.h for the form of addresses
# Tests beside the code may use these, too.
TEST_LIBRARIES = "cmocka.h jansson.h pthread.h zmq.h msgpack.h curl/curl.h openssl/evp.h openssl/pem.h openssl/ssl.h openssl/x509v3.h"
SYSTEM = ("sys/", "linux/", "netinet/")
CLI_ROOMS = "base/base.h engine/engine.h"  # pd-read and doctor look at engines by themselves
ENGINE_PUBLIC = "rd2h/engine.h rd2h/status.h rd2h/log.h"
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:<([^>]+)>|"([^"]+)")')


def is_test(file: Path) -> bool:
    return file.name.startswith("test_")


def check_public(where: str, name: str) -> str | None:
    """cli, examples, python and the public headers themselves stand on include/rd2h alone."""
    if name.startswith("rd2h/") or "/" not in name or name.startswith(SYSTEM) or name in LIBRARIES:
        return None
    if where == "cli" and name in CLI_ROOMS.split():
        return None
    if where == "cli" and name.startswith("cli/"):
        return None
    return f"{where} may include <rd2h/...> only"


def check_engine(file: Path, name: str) -> str | None:
    own = f"engines/{file.parent.name}/"
    if name.startswith("rd2h/"):
        return None if name in ENGINE_PUBLIC.split() else f"of the public headers, engines include {ENGINE_PUBLIC} only"
    if name.split("/")[0] in ROOMS and name.split("/")[0] != "base" and not (name == "engine/engine.h" and is_test(file)):
        return "engines include rd2h/engine.h and base, no other room"
    if name.startswith("engines/") and not name.startswith(own):
        return "no engine includes another"
    return None


def check_room(file: Path, room: str, name: str, system: bool) -> str | None:
    if name.startswith("rd2h/") or (not system and "/" not in name):
        return None
    target = name.split("/")[0]
    if target in ROOMS:
        if target != room and target not in ROOMS[room].split():
            return f"{room} may include {ROOMS[room] or 'no other room'}, not {target}"
        if target != room and name.split("/", 1)[1] not in FACES.get(target, f"{target}.h").split():
            return f"of {target}, other rooms include {FACES.get(target, target + '.h')} only"
        return None
    if target in ("engines", "cli", "python"):
        return f"rooms include no {target}"
    if is_test(file):
        return None
    if room in PURE and name.removesuffix(".h") not in PURE_SYSTEM.split() and name not in LIBRARIES:
        return f"{room} is pure: of the system only {PURE_SYSTEM}"
    return None


def check_library(file: Path, where: str, name: str) -> str | None:
    if is_test(file):
        return None if name not in LIBRARIES or name in TEST_LIBRARIES.split() else f"{name} is not for tests"
    if name in LIBRARIES and where not in LIBRARIES[name].split():
        return f"{name} is for {LIBRARIES[name]} only"
    return None


def proxy_part(stem: str) -> str:
    return next((part for part, (files, _) in PROXY.items() if stem in files.split()), "program")


def check_proxy(file: Path, name: str, system: bool) -> str | None:
    part = "program" if is_test(file) else proxy_part(file.stem)
    if system:
        pure = part in PROXY_PURE and name.removesuffix(".h") not in PURE_SYSTEM.split() + ["arpa/inet"]
        return f"{part} of the proxy is pure: of the system only {PURE_SYSTEM}" if pure else None
    if not name.startswith("proxy/"):
        return "the proxy stands alone: proxy/... only"
    target = proxy_part(Path(name).stem)
    if part != "program" and target != part and target not in PROXY[part][1].split():
        return f"{part} of the proxy may include {PROXY[part][1] or 'no other part'}, not {target}"
    return None


def check_line(file: Path, name: str, system: bool) -> str | None:
    top, *rest = file.relative_to(ROOT).parts
    if name.startswith(".."):
        return "paths start at a room (room/file.h) or name a file beside this one"
    if top == "src":
        rule = check_room(file, rest[0], name, system)
        return rule or check_library(file, rest[0], name)
    if top == "proxy":
        return check_proxy(file, name, system and not name.startswith("rd2h/"))
    if top == "engines":
        return check_engine(file, name) or check_library(file, "engine", name)
    return check_public(top, name) or check_library(file, top, name)


def main() -> int:
    bad = files = lines = 0
    for top in ("include", "src", "engines", "cli", "python", "examples", "proxy"):
        for file in sorted((ROOT / top).rglob("*")):
            if file.suffix not in (".c", ".h", ".py"):
                continue
            files += 1
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                lines += 1
                rule = check_line(file, match[1] or match[2], match[1] is not None)
                if rule:
                    bad += 1
                    print(f"{file.relative_to(ROOT)}:{number}: {line.strip()}: {rule}")
    print(f"{lines} includes of {files} files, {bad} against the rules")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
