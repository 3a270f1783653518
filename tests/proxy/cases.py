# SPDX-License-Identifier: Apache-2.0
"""The list of cases; each is a function that raises when something is not as it must be."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[], None]


CASES: list[Case] = []


def case(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(run: Callable[[], None]) -> Callable[[], None]:
        CASES.append(Case(name, run))
        return run

    return add


def equal(got: object, want: object, what: str = "") -> None:
    if got != want:
        raise AssertionError(f"{what + ': ' if what else ''}{got!r}, expected {want!r}")


def true(good: object, what: str) -> None:
    if not good:
        raise AssertionError(what)
