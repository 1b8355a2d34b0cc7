"""What a PromQL expression names: metrics with the labels of their matchers, and labels it groups or joins by.

Whether it is PromQL at all is for promtool; this only finds the names in it.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from deploy.local.pulsar import cache_folder

_TOKEN = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\]]*\]|[a-zA-Z_:][\w:]*|[0-9][\w.]*|[^\s\w])""")
_NAME = re.compile(r"[a-zA-Z_:][\w:]*")
_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan"}


class Selector(NamedTuple):
    """A metric in an expression, and the labels that its matchers name."""

    metric: str
    labels: frozenset[str]


class Named(NamedTuple):
    """What an expression names; `labels`: those that it groups or joins by, or writes."""

    selectors: tuple[Selector, ...]
    labels: frozenset[str]

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset(one.metric for one in self.selectors)


def named_in(expression: str) -> Named:
    tokens = _TOKEN.findall(expression)
    selectors, labels, at = list[Selector](), set[str](), 0
    while at < len(tokens):
        token, after = tokens[at], tokens[at + 1 : at + 2]
        at += 1
        if not _NAME.fullmatch(token):
            continue
        if token in _LISTS:
            listed, at = _until(tokens, at, ")")
            labels |= {one for one in listed if _NAME.fullmatch(one)}
        elif after == ["("] or after[:1] in (["by"], ["without"]) or token in _WORDS:
            continue
        elif after == ["{"]:
            listed, at = _until(tokens, at, "}")
            named = frozenset(one for one, then in pairwise(listed) if then in {"=", "!"} and _is_name(one))
            selectors.append(Selector(token, named))
        else:
            selectors.append(Selector(token, frozenset()))
    return Named(tuple(selectors), frozenset(labels))


def _is_name(token: str) -> bool:
    return _NAME.fullmatch(token) is not None


def _until(tokens: list[str], at: int, end: str) -> tuple[list[str], int]:
    to = tokens.index(end, at)
    return tokens[at:to], to + 1


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool") or str(cache_folder() / "promtool" / "promtool")
    assert Path(found).is_file(), "promtool is not here: run `make setup`"
    return subprocess.run([found, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=240)


def template_labels(text: str) -> Iterator[str]:
    """The labels that a template names: `{{ $labels.instance }}` of Prometheus, `{{instance}}` of Grafana."""
    yield from re.findall(r"\$labels\.(\w+)", text)
    yield from re.findall(r"\{\{\s*(\w+)\s*\}\}", text)
