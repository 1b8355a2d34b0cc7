"""Starts a broker and logs only its refused publications: `python -m waybill.mqtt.broker_log LOG PROGRAM ...`.

Mosquitto logs refused publications at its debug level only, with four more lines for each message. So the broker writes
its log into a pipe, and a child of this process drops those lines. The broker replaces this process, and keeps its
process id.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable

DENIED = re.compile(rb"^Denied PUBLISH from (\S+) \(d\d, q\d, r\d, m\d+, '([^\n]*)\n", re.MULTILINE)
"""Mosquitto's line: who published, and the topic with what follows it."""
MAX_COUNTED = 1000
"""Senders and kinds of topics that have a line of their own in one second."""
MAX_SUBSCRIPTIONS = 32
"""Topics that a client may ask for over one connection; an agent asks for two."""
_MAX_CLIENTS = 100_000
_MAX_LINE_BYTES = 64 << 10
_PIPE_BYTES = 1 << 20
_READ_EACH_MS = 20
_COUNTED_S = 1.0
_SUBSCRIBED = re.compile(
    rb"^(?:New client connected from \S+ as (\S+) \(|Received SUBSCRIBE from (\S+)\n|(\t[^\n]* \(QoS \d\)\n))",
    re.MULTILINE,
)
_OF_MESSAGES = re.compile(rb"^(?:Received |Sending |No will message|Will message |\t|(?=\n))[^\n]*\n", re.MULTILINE)
_Sender = tuple[bytes, bytes]


class LogFilter:
    """Filters the lines of the broker's log, and adds the time.

    Publications of one sender to one kind of topic are one line when they begin, then one line a second with their
    number (`x17 `): no device can fill the disk. Subscriptions of a client beyond MAX_SUBSCRIPTIONS are counted alike.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._rest = b""
        self._since_s = clock()
        self._refused: dict[_Sender, tuple[bytes, int]] = {}
        self._subscriptions: dict[bytes, int] = {}
        self._subscriber = b""

    def feed(self, chunk: bytes, *, is_last: bool = False) -> bytes:
        """The bytes to write now; `chunk` may be empty when time has passed."""
        text = self._rest + chunk + b"\n" * is_last
        end = text.rfind(b"\n") + 1
        text, self._rest = text[:end], text[end:]
        if len(self._rest) > _MAX_LINE_BYTES:
            self._rest = b""
        excess = b"".join(map(self._count_subscription, _SUBSCRIBED.finditer(text)))
        kept = DENIED.sub(self._count, _OF_MESSAGES.sub(b"", text)) + excess
        if is_last or (self._refused and not 0 <= self._clock() - self._since_s < _COUNTED_S):
            kept += b"".join(b"x%d %s\n" % (times, line) for line, times in self._refused.values() if times)
            self._refused.clear()
        if not kept:
            return b""
        now = time.strftime("%Y-%m-%dT%H:%M:%S: ", time.localtime(self._clock())).encode()
        return now + kept[:-1].replace(b"\n", b"\n" + now) + b"\n"

    def _count_subscription(self, found: re.Match[bytes]) -> bytes:
        connected, subscriber, topic = found.groups()
        if topic is None:
            self._subscriber = subscriber or self._subscriber
            # The subscriptions of a device end with its connection.
            self._subscriptions.pop(connected, None)
            return b""
        if len(self._subscriptions) >= _MAX_CLIENTS:
            self._subscriptions.clear()
        count = self._subscriptions[self._subscriber] = self._subscriptions.get(self._subscriber, 0) + 1
        if count <= MAX_SUBSCRIPTIONS:
            return b""
        return self._count_line(b"Denied SUBSCRIBE from %s\n" % self._subscriber, (self._subscriber, b"\t"))

    def _count(self, found: re.Match[bytes]) -> bytes:
        topic = found[2].rsplit(b"', ... (", 1)[0]
        return self._count_line(found[0], (found[1], topic.rsplit(b"/", 1)[-1]))

    def _count_line(self, whole: bytes, sender: _Sender) -> bytes:
        if not self._refused:
            self._since_s = self._clock()
        if sender not in self._refused and len(self._refused) >= MAX_COUNTED:
            sender = (b"", b"")
        line, times = self._refused.get(sender, (b"", 0))
        if not line:
            self._refused[sender] = (whole[:-1], 0)
            return whole
        self._refused[sender] = (line, times + 1)
        return b""


def _filter(source: int, path: str) -> None:
    """Runs until the program has ended. It must never block the broker: lines that cannot be written are dropped."""
    lines, ended = LogFilter(), select.poll()
    ended.register(source, 0)
    while True:
        ready, _, _ = select.select([source], [], [], _COUNTED_S)
        chunk = os.read(source, _PIPE_BYTES) if ready else b""
        is_over = bool(ready) and not chunk
        kept = lines.feed(chunk, is_last=is_over)
        if kept:
            try:
                # Opened each time: a log that was renamed is another file.
                with open(path, "ab") as log:  # noqa: PTH123 - a few objects less in a process that does nothing else
                    log.write(kept)
            except OSError as error:
                sys.stderr.write(f"{path}: {error.strerror}\n")
        if is_over:
            return
        # Each line is a write of the broker's; who reads them one by one takes more time than the broker.
        ended.poll(_READ_EACH_MS)


def main(path: str, command: list[str]) -> None:
    """Become the program; a child filters its log. Raises OSError."""
    source, target = os.pipe()
    fcntl.fcntl(target, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    if os.fork() == 0:
        os.close(target)
        # It ends with the broker, whose last lines it still writes.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        _filter(source, path)
        os._exit(0)
    os.close(source)
    os.dup2(target, 1)
    os.close(target)
    os.execvp(command[0], command)  # noqa: S606 - the program that we were asked to be


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
