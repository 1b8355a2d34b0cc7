"""One canary process: its vehicle, its driver, its observers, and its status."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import structlog

from deploy.canary.agent_observer import AgentObserver
from deploy.canary.config import LAKE_HOPS, CanarySettings
from deploy.canary.driver import ProbeDriver
from deploy.canary.errors import CanaryError
from deploy.canary.hops import Hop
from deploy.canary.lake_observers import EventObserver, RecordsObserver
from deploy.canary.money_observer import MoneyObserver
from deploy.canary.observer import Observer, ObserverThread
from deploy.canary.probe_at_hop import HopColour
from deploy.canary.sensor import publish_probe
from deploy.canary.sent_probes import SentProbes
from deploy.canary.topic_observers import AlertObserver, BatchObserver
from deploy.canary.vehicle import CanaryVehicle
from deploy.canary.watch import CanaryWatch
from waybill.daemon.status_server import HttpAnswer, Routes, StatusServer, json_answer, metrics_answer

__all__ = ["health", "run_canary"]

_TICK_S: Final = 1.0
_READY_S: Final = 60.0
"""So long the first probe waits for the vehicle and the readers of topics; then it is sent all the same."""
_STOP_S: Final = 10.0
_LOG = structlog.get_logger("canary")


def run_canary(settings: CanarySettings, stop: threading.Event) -> None:
    """Runs until `stop` is set. Raises CanaryError, LocalStackError, OSError."""
    watch = CanaryWatch(settings)
    vehicle = CanaryVehicle(settings)
    sent = SentProbes(settings.folder / "sent-probes.json", has_sent_before=vehicle.has_sent_before)
    with ExitStack() as held:
        held.enter_context(_status(settings, watch))
        held.callback(vehicle.stop)
        vehicle.start()
        observers = [ObserverThread(one, watch, stop) for one in _observers(watch, vehicle, sent)]
        publish = partial(publish_probe, watch.script, settings.device, port=vehicle.broker_port, stop=stop)
        driving = threading.Thread(
            target=_drive,
            args=(watch, vehicle, ProbeDriver(watch, sent, publish, stop), stop),
            name="driver",
            daemon=True,
        )
        for observer in observers:
            observer.start()
        driving.start()
        _LOG.info("started", region=settings.region, device=f"{settings.tenant}/{settings.device}")
        try:
            while not stop.wait(_TICK_S):
                # without it nothing would be red: nothing is sent
                if not driving.is_alive():
                    raise CanaryError("the driver ended: see the log")
                vehicle.supervise()
                watch.count()
        finally:
            # also when a server of the vehicle raised: the threads end with it
            stop.set()
            driving.join(_STOP_S)
            for observer in observers:
                observer.join()
    _LOG.info("stopped")


def _drive(watch: CanaryWatch, vehicle: CanaryVehicle, driver: ProbeDriver, stop: threading.Event) -> None:
    """Sends probes as soon as the agent listens and each topic is read."""
    topics = {Hop.REGION, Hop.CENTRE, Hop.ALERT} & {*watch.settings.watched}
    for _ in range(int(_READY_S)):
        if not (awaited := _awaited(watch, vehicle, topics)):
            break
        watch.hold(f"it waits until {awaited}, for {_READY_S:.0f} s at most")
        if stop.wait(1.0):
            return
    driver.run()


def _awaited(watch: CanaryWatch, vehicle: CanaryVehicle, topics: Collection[Hop]) -> str:
    """What the first probe waits for; "": nothing."""
    if not vehicle.is_listening():
        return "the vehicle's agent is connected to its broker"
    unread = [hop.value for hop in Hop if hop in topics and not watch.has_looked([hop])]
    return f"the topic of {', '.join(unread)} is read" if unread else ""


def _observers(watch: CanaryWatch, vehicle: CanaryVehicle, sent: SentProbes) -> Iterator[Observer]:
    """What looks at the hops that are watched."""
    settings, watched = watch.settings, {*watch.settings.watched}
    if settings.regional is not None and Hop.REGION in watched:
        yield BatchObserver(watch, Hop.REGION, settings.regional)
    if settings.centre is not None and Hop.CENTRE in watched:
        yield BatchObserver(watch, Hop.CENTRE, settings.centre)
    if settings.centre is not None and Hop.ALERT in watched:
        yield AlertObserver(watch, settings.centre)
    if Hop.ACKNOWLEDGED in watched:
        yield AgentObserver(watch, vehicle.settings)
    if watched & LAKE_HOPS:
        # the hops behind them need what they see
        yield RecordsObserver(watch)
    if Hop.EVENT in watched:
        yield EventObserver(watch)
    if watched & {Hop.USAGE, Hop.RATED}:
        yield MoneyObserver(watch, sent)


@contextmanager
def _status(settings: CanarySettings, watch: CanaryWatch) -> Iterator[None]:
    """Serves `/metrics`, `/status` and `/health` (200 while each watched hop is green; the others are named)."""
    if not settings.status.port:
        yield
        return
    routes: Routes = {
        "/metrics": lambda: metrics_answer(watch.metrics.registry),
        "/status": lambda: json_answer(watch.status().model_dump_json()),
        "/health": partial(health, watch),
    }
    try:
        server = StatusServer(settings.status.host, settings.status.port, routes)
    except OSError as error:
        where = f"{settings.status.host}:{settings.status.port}"
        raise CanaryError(f"status cannot be served at {where}: {error.strerror}; change [status]") from error
    with server:
        yield


def health(watch: CanaryWatch) -> HttpAnswer:
    """200 when each hop that is watched is green. What is not known is no health: 503, as for what is red."""
    status = watch.status(buckets=False)
    said = {
        "healthy": status.is_healthy,
        "region": status.region,
        "red": {one.hop: one.reason for one in status.hops if one.colour is HopColour.RED},
        "unknown": {one.hop: one.reason for one in status.hops if one.colour is HopColour.UNKNOWN},
    }
    return json_answer(json.dumps(said), is_good=status.is_healthy is True)
