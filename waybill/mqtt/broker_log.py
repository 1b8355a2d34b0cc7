"""Starts a broker and logs only its refused publications: `python -m waybill.mqtt.broker_log LOG PROGRAM ...`.

Mosquitto logs refused publications at its debug level only, with four more lines for each message. So the broker writes
its log into a pipe, and a child of this process drops those lines. The broker replaces this process, and keeps its
process id.

`--control SOCKET` before LOG is for containers, where no other program sees the broker's process. The broker is the
child there, as all processes end with the first one, and the last lines would be lost. The first one passes on
SIGTERM, tells of the broker at the socket and sends it SIGHUP, writes the log to its own output too, empties a large
LOG, and ends as the broker does.
`--ask SOCKET` fails without one that handles SIGHUP: Mosquitto does when it listens.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from waybill.daemon.signals import handle_signals

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
_MAX_LOG_BYTES = 16 << 20
_STATE, _RELOAD = b"?", b"!"
_ASKED_S, _ANSWERED_S = 0.2, 2.0
_MAX_ANSWER_BYTES = 256


class ProcessState(NamedTuple):
    """A running process. `started`: in clock ticks since boot, because a process id may be used again.

    `is_ready`: it has a handler for SIGHUP, which would end it otherwise.
    """

    pid: int
    program: str
    started: str
    is_ready: bool


def process_state(pid: int) -> ProcessState:
    """A process of this machine. Raises OSError, ValueError if it has ended."""
    # proc(5); the name is in parentheses and may itself contain parentheses
    with open(f"/proc/{pid}/stat", errors="replace") as file:  # noqa: PTH123 - see `_filter`
        before, _, after = file.read().rpartition(") ")
    with open(f"/proc/{pid}/status", errors="replace") as file:  # noqa: PTH123
        caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    fields = after.split()
    if fields[0] in "ZX":
        raise ValueError(f"process {pid} has ended")
    is_ready = bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)
    return ProcessState(pid, before.partition("(")[2], fields[19], is_ready)


def ask_broker(control: str, *, reload: bool = False) -> ProcessState:
    """The broker behind a control socket, after SIGHUP with `reload` if it is ready. Raises OSError, ValueError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWERED_S)
        connection.connect(control)
        connection.sendall(_RELOAD if reload else _STATE)
        pid, is_ready, started, program = connection.recv(_MAX_ANSWER_BYTES).decode().split(" ", 3)
    return ProcessState(int(pid), program, started, is_ready == "1")


class _Control:
    """The socket at which the broker's process is asked for. Without a path it is never asked."""

    def __init__(self, path: str = "", broker: int = 0) -> None:
        self._broker = broker
        self.sockets = [socket.socket(socket.AF_UNIX)] if path else []
        for one in self.sockets:
            # A broker before us may have been killed.
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - see `_filter`
            one.bind(path)
            one.listen()

    def answer(self) -> None:
        """Answer who has connected; whoever is slow gets no answer, because the log waits."""
        with suppress(OSError, ValueError), self.sockets[0].accept()[0] as connection:
            connection.settimeout(_ASKED_S)
            asked, state = connection.recv(1), process_state(self._broker)
            if asked == _RELOAD and state.is_ready:
                os.kill(self._broker, signal.SIGHUP)
            connection.sendall(f"{state.pid} {state.is_ready:d} {state.started} {state.program}".encode())


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


def _filter(source: int, path: str, control: _Control) -> None:
    """Runs until the program has ended. It must never block the broker: lines that cannot be written are dropped."""
    lines, ended = LogFilter(), select.poll()
    ended.register(source, 0)
    sources = [source, *(one.fileno() for one in control.sockets)]
    while True:
        ready, _, _ = select.select(sources, [], [], _COUNTED_S)
        chunk = os.read(source, _PIPE_BYTES) if source in ready else b""
        is_over = source in ready and not chunk
        if kept := lines.feed(chunk, is_last=is_over):
            _write(kept, path, is_copied=bool(control.sockets))
        if is_over:
            return
        if any(one in ready for one in sources[1:]):
            control.answer()
        # Each line is a write of the broker's; who reads them one by one takes more time than the broker.
        ended.poll(_READ_EACH_MS)


def _write(kept: bytes, path: str, *, is_copied: bool) -> None:
    try:
        # Opened each time: a log that was renamed is another file.
        with open(path, "ab") as log:  # noqa: PTH123 - a few objects less in a process that does nothing else
            if is_copied and log.tell() > _MAX_LOG_BYTES:
                log.truncate(0)
            log.write(kept)
        if is_copied:
            os.write(1, kept)
    except OSError as error:
        sys.stderr.write(f"{path}: {error.strerror}\n")


def main(path: str, command: list[str], control: str = "") -> None:
    """Become the program; a child filters its log. With `control` the program is the child. Raises OSError."""
    source, target = os.pipe()
    fcntl.fcntl(target, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    child = os.fork()
    if control and child:
        os.close(target)
        with handle_signals((signal.SIGTERM, signal.SIGINT), lambda number: os.kill(child, number)):
            _filter(source, path, _Control(control, child))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    if not control and not child:
        os.close(target)
        # It ends with the broker, whose last lines it still writes.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        _filter(source, path, _Control())
        os._exit(0)
    os.close(source)
    os.dup2(target, 1)
    os.close(target)
    os.execvp(command[0], command)  # noqa: S606 - the program that we were asked to be


if __name__ == "__main__":
    if sys.argv[1] == "--ask":
        found = ask_broker(sys.argv[2])
        sys.exit(f"{found}" if not found.is_ready else 0)
    elif sys.argv[1] == "--control":
        main(sys.argv[3], sys.argv[4:], sys.argv[2])
    else:
        main(sys.argv[1], sys.argv[2:])
