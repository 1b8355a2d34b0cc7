"""Reads of what may not answer: each bounded in time, and its answer kept for some seconds."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

WAIT_S: Final = 2.0
KEPT_S: Final = 5.0
_MAX_READS: Final = 1_000

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Answer(Generic[Value]):
    """The answer of a read. `error`: why there is none, or ""; then `value` is None."""

    value: Value | None = None
    error: str = ""

    def get(self) -> Value:
        """The value of an answer without an error."""
        assert not self.error
        return self.value  # type: ignore[return-value]


_NO_ANSWER: Final = re.compile(r" did not answer at \S+: GET \S+: \w+\((?:[^()]|\([^()]*\))*\)")
_TIMEOUT: Final = re.compile(r"Timeout: Pulsar error: \w+")


def plain(problem: str) -> str:
    """A problem without the words of the libraries below."""
    return _TIMEOUT.sub("it does not answer", _NO_ANSWER.sub(" does not answer", problem))


class _Read:
    """One read in a thread of its own. A thread that hangs is left behind; no second one is started for its name."""

    def __init__(self, name: str, read: Callable[[], Any], clock: Callable[[], float]) -> None:
        self.begun_s = clock()
        self.done_s: float | None = None
        self.answer: Answer[Any] = Answer(error="no answer")
        self.done = threading.Event()
        self._read, self._clock = read, clock
        # not in a pool, whose threads would be waited for at the end of the process
        threading.Thread(target=self._run, name=f"read {name}", daemon=True).start()

    def _run(self) -> None:
        try:
            self.answer = Answer(self._read())
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no answer, and the reader must hear why
            self.answer = Answer(error=str(error) or type(error).__name__)
        finally:
            self.done_s = self._clock()
            self.done.set()


class BoundedReads:
    """Reads by name. Any thread may ask.

    `kept_s`: an answer is given again for so long. A read that takes longer than its wait goes on, and a later question
    gets its answer; meanwhile the answer is an error.
    """

    def __init__(self, kept_s: float = KEPT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_s, self._clock = kept_s, clock
        self._lock = threading.Lock()
        self._reads: dict[str, _Read] = {}

    def ask(self, reads: Mapping[str, Callable[[], Any]], wait_s: float = WAIT_S) -> dict[str, Answer[Any]]:
        """The answer of each read; all of them together take at most about `wait_s`."""
        until_s = time.monotonic() + wait_s
        asked = {name: self._started(name, read) for name, read in reads.items()}
        for one in asked.values():
            one.done.wait(max(0.0, until_s - time.monotonic()))
        return {name: self._answer_of(one, wait_s) for name, one in asked.items()}

    def _answer_of(self, one: _Read, wait_s: float) -> Answer[Any]:
        if one.done.is_set():
            return one.answer
        return Answer(error=f"no answer within {max(wait_s, self._clock() - one.begun_s):.0f} s")

    def _started(self, name: str, read: Callable[[], Any]) -> _Read:
        with self._lock:
            now_s = self._clock()
            held = self._reads.get(name)
            if held is not None and (held.done_s is None or now_s - held.done_s < self._kept_s):
                return held
            if len(self._reads) > _MAX_READS:
                self._reads = {name: one for name, one in self._reads.items() if one.done_s is None}
            self._reads[name] = _Read(name, read, self._clock)
            return self._reads[name]
