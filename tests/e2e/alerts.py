# SPDX-License-Identifier: Apache-2.0
"""docs/alerts.yml against metrics pages: that every rule says what it is for, and that every metric, label and value it names is real."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs/alerts.yml"
WORDS = frozenset(  # of the query language, as far as the rules use it: anything else that looks like a metric must be one
    "and or unless by on max min sum avg increase rate histogram_quantile".split()
)
SCRAPED = {"instance", "job"}  # labels that Prometheus adds
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
MATCHER = re.compile(r'\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*(?:,|$)')
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+$")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Rule:
    name: str
    expr: str
    severity: str
    texts: dict[str, str]


@dataclass(frozen=True)
class Use:
    """A metric in a rule, with the matchers behind it: label, operator, value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


def load(file: Path = FILE) -> list[Rule]:
    groups = yaml.safe_load(file.read_text())["groups"]
    rules = [r for g in groups for r in g["rules"]]
    return [Rule(r["alert"], r["expr"], r["labels"]["severity"], r["annotations"]) for r in rules]


def matchers(text: str) -> tuple[tuple[str, str, str], ...]:
    found, at = [], 0
    while text[at:].strip():
        if (m := MATCHER.match(text, at)) is None:
            raise ValueError(f"{{{text}}} is no list of matchers")
        found.append((m[1], m[2], m[3]))
        at = m.end()
    return tuple(found)


def uses(expr: str) -> tuple[list[Use], set[str]]:
    """Metrics of an expression, and the labels it groups by."""
    grouped: set[str] = set()

    def take(m: re.Match) -> str:
        grouped.update(n.strip() for n in m[1].split(","))
        return " "

    rest = re.sub(r"\b(?:by|on)\s*\(([^)]*)\)", take, expr)
    rest = re.sub(r"\[\d+[smhd]\]", " ", rest)
    found = []
    while m := re.search(rf"(?<![\w:.])({NAME.pattern})(\{{[^}}]*\}})?", rest):
        if m[1] not in WORDS:
            found.append(Use(m[1], matchers((m[2] or "{}")[1:-1])))
        rest = rest[m.end() :]
    return found, grouped


def page(text: str) -> dict[str, dict[str, set[str]]]:
    """Of a metrics page: metric -> label -> its values. A metric with no sample yet has no labels."""
    found: dict[str, dict[str, set[str]]] = {n: {} for n in re.findall(r"^# TYPE (\S+) gauge$", text, re.M)}
    for line in text.splitlines():
        if not line.startswith("#") and (m := SAMPLE.match(line)):
            labels = found.setdefault(m[1], {})
            for name, value in LABEL.findall(m[2] or ""):
                labels.setdefault(name, set()).add(value)
    return found


def mentioned(rules: list[Rule]) -> set[str]:
    """Metrics that the texts send people to."""
    return {m for r in rules for m in re.findall(r"\b(?:vllm:|rd2h_proxy_)\w+", " ".join(r.texts.values()))}


def complaints(rules: list[Rule], pages: dict[str, dict[str, set[str]]], prefix: str) -> list[str]:
    """What rules name that no page has, among the metrics that begin with prefix. Values count where the page always has them all."""
    wrong = []
    for rule in rules:
        found, grouped = uses(rule.expr)
        for use in (u for u in found if u.metric.startswith(prefix)):
            if use.metric not in pages:
                wrong.append(f"{rule.name}: no page has {use.metric}")
                continue
            labels = pages[use.metric]
            if not labels and not use.metric.startswith("rd2h_proxy_"):
                continue  # a gauge of rows, and there is none at present
            wanted = {name for name, _, _ in use.matchers} | (grouped - SCRAPED)
            wrong += [f"{rule.name}: {use.metric} has no label {n}" for n in sorted(wanted - labels.keys())]
            if use.metric.startswith("rd2h_proxy_"):
                values = [(n, v) for n, op, value in use.matchers for v in (value.split("|") if "~" in op else [value])]
                wrong += [f'{rule.name}: {use.metric} has no {n}="{v}"' for n, v in values if v not in labels.get(n, set())]
    return wrong
