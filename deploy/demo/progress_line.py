"""The line that says what the demo waits for: its timer goes on as long as it does, whatever is counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

__all__ = ["ProgressLine"]


class _StepTime(ProgressColumn):
    """How long this step has taken. Rich's own stops where all is counted, though not all is over."""

    def render(self, task: Task) -> Text:
        return Text(str(timedelta(seconds=int(task.elapsed or 0))), style="progress.elapsed")


class ProgressLine:
    """One line at the end of the screen; each step begins its timer anew."""

    def __init__(self, progress: Progress, first: str) -> None:
        self._progress = progress
        self._what, self._task = first, self._begin(first)

    @classmethod
    @contextmanager
    def on(cls, console: Console, first: str) -> Iterator[ProgressLine]:
        """On a console; nothing is left of it."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), _StepTime())
        with Progress(*columns, console=console, transient=True) as progress:
            yield cls(progress, first)

    @property
    def console(self) -> Console:
        """Where lines are printed that stay."""
        return self._progress.console

    def show(self, what: str, done: float, total: float) -> None:
        """What is waited for, and how much of it is there; `total` 0: nobody knows."""
        if what != self._what:
            self._progress.remove_task(self._task)
            self._what, self._task = what, self._begin(what)
        if total:
            self._progress.update(self._task, completed=done, total=total)

    def _begin(self, what: str) -> TaskID:
        return self._progress.add_task(what, total=None)
