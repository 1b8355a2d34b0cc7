"""`/live`: server-sent events with the last fixes, one stream a tab, at most one update a second."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import structlog
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from cloud_jobs.errors import CloudError
from cloud_jobs.lake.coverage import TenantDevice
from console.context import Console, Query, Viewer
from console.live import LiveStatus
from console.page import ms_of

_log = structlog.get_logger(__name__)
MOST_STREAMS: Final = 100
_EACH_S: Final = 1.0
_A_SECOND: Final = 20_000
"""The most devices of an update a second; larger fleets get an update less often."""
_AT_LEAST_EACH_S: Final = 10.0
"""So often an event is sent even if nothing came: a tab that is gone is noticed by it."""
GROUP_S: Final = 900.0
"""So long a stream lasts at most. Then the browser opens it again, and its session, and what it may see, are judged
again.
"""
_RETRY: Final = "retry: 3000\n\n"

Update = tuple[int, str]
"""How many devices an update has, and its text."""


@dataclass(slots=True, eq=False)
class _Group:
    """Tabs whose viewers may see the same. `numbers`: of the devices, `looked`: how many devices were judged."""

    viewer: Viewer
    tabs: list[asyncio.Queue[Update | None]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    looked: int = 0
    begun_s: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)


def event(name: str, data: object) -> str:
    """A server-sent event; JSON has no line break."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'), allow_nan=False)}\n\n"


class LiveStreams:
    """The open streams of an application. All methods run in its event loop."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._groups: dict[tuple[frozenset[str] | None, frozenset[str] | None], _Group] = {}
        self._publisher: asyncio.Task[None] | None = None
        self._has_ended = False
        self._sent: tuple[int, LiveStatus] | None = None
        self._sent_s = 0.0

    @property
    def count(self) -> int:
        return sum(len(one.tabs) for one in self._groups.values())

    async def endpoint(self, request: Request) -> Response:
        """The stream of a tab."""
        if self._has_ended or self.count >= MOST_STREAMS:
            return PlainTextResponse("too many streams are open; reload the page later", 503, {"retry-after": "30"})
        viewer = Query.of(request).viewer
        try:
            await run_in_threadpool(self._console.log_fleet_access, viewer, "console live")
        except CloudError as error:
            return PlainTextResponse(str(error), 503)
        return StreamingResponse(
            self._events(viewer), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    def end(self) -> None:
        """Ends all streams: each gets a sentinel in place of what waits for it."""
        self._has_ended = True
        if self._publisher is not None:
            self._publisher.cancel()
        for group in self._groups.values():
            _offer(group.tabs, None)

    async def _events(self, viewer: Viewer) -> AsyncIterator[str]:
        key = viewer.tenants, viewer.accounts
        group = self._groups.setdefault(key, _Group(viewer))
        tab: asyncio.Queue[Update | None] = asyncio.Queue(1)
        group.tabs.append(tab)
        self._console.feed.watchers += 1
        if self._publisher is None:
            self._publisher = asyncio.create_task(self._publish())
        sent = 0
        try:
            yield _RETRY
            first = await run_in_threadpool(self._encode, group)
            if tab.empty() and not self._has_ended:
                _offer([tab], first)
            while (update := await tab.get()) is not None:
                count, text = update
                if count > sent:
                    yield event("devices", {"from": sent, "ids": group.ids[sent:count]})
                    sent = count
                yield text
        finally:
            self._console.feed.watchers -= 1
            group.tabs.remove(tab)
            if not group.tabs and self._groups.get(key) is group:
                del self._groups[key]
            if not self._groups and self._publisher is not None:
                self._publisher.cancel()
                self._publisher = None

    async def _publish(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # a fleet of 100,000 is 2 MB
            await asyncio.sleep(
                max(_EACH_S, max((len(one.ids) for one in self._groups.values()), default=0) / _A_SECOND)
            )
            now = self._console.feed.store.version, self._console.feed.status()
            if now == self._sent and loop.time() - self._sent_s < _AT_LEAST_EACH_S:
                continue
            self._sent, self._sent_s = now, loop.time()
            for key, group in [*self._groups.items()]:
                if time.monotonic() - group.begun_s > GROUP_S:
                    self._groups.pop(key, None)
                    _offer(group.tabs, None)
                    continue
                try:
                    update = await run_in_threadpool(self._encode, group)
                except CloudError as error:
                    # the tabs say how old their last update is; the next one may succeed
                    _log.warning("no update for open tabs", error=str(error))
                    continue
                _offer(group.tabs, update)

    def _encode(self, group: _Group) -> Update:
        """The update of a group, made once for all of its tabs."""
        store = self._console.feed.store
        with group.lock:
            fresh = store.devices(group.looked)
            may_see = self._console.visible(group.viewer, fresh) if fresh else frozenset()
            for number, device in enumerate(fresh, group.looked):
                if device in may_see:
                    group.numbers.append(number)
                    group.ids.append(id_of(device))
            group.looked += len(fresh)
            numbers = np.array(group.numbers, np.int64)
        status = self._console.feed.status()
        return len(numbers), event(
            "fixes",
            {
                "count": len(numbers),
                **store.encode(numbers),
                "source": status.source,
                "cluster": status.cluster,
                "heard_at": None if status.heard_at is None else ms_of(status.heard_at),
                "problem": status.problem,
                "now": ms_of(self._console.now()),
            },
        )


def id_of(device: TenantDevice) -> str:
    return f"{device.tenant}/{device.device}"


def _offer(tabs: Iterable[asyncio.Queue[Update | None]], update: Update | None) -> None:
    """Newest wins: an update that a tab has not taken yet is replaced."""
    for tab in tabs:
        if tab.full():
            tab.get_nowait()
        tab.put_nowait(update)
