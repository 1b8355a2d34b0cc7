"""What a gateway says of itself, and reading it from outside."""

from __future__ import annotations

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError
from rich.table import Table
from rich.text import Text

from gateway.config import Observe
from gateway.errors import NoAnswer

_TIMEOUT_S = 3.0


class Status(BaseModel):
    """One moment of a gateway. Counts are since `started_at` (ISO 8601). `healthy`: both sides are connected."""

    model_config = ConfigDict(frozen=True)

    gateway: str
    region: str
    pid: int
    started_at: str
    state: str = "starting"
    healthy: bool = False
    mqtt_connected: bool = False
    pulsar_connected: bool = False
    trouble: str = ""
    in_flight: int = 0
    in_flight_bytes: int = 0
    oldest_in_flight_s: float = 0.0
    owed_devices: int = 0
    batches_persisted: int = 0
    records_persisted: int = 0
    bytes_persisted: int = 0
    batches_refused: int = 0
    batches_joined: int = 0
    acks_published: int = 0
    pauses_asked: int = 0
    pushes_published: int = 0
    pushes_applied: int = 0
    pushes_refused: int = 0
    pushes_taken_back: int = 0
    pushes_unknown: int = 0
    pulsar_failures: int = 0


def read_status(settings: Observe) -> Status:
    """Ask the gateway that runs with these settings. Raises NoAnswer."""
    url = f"http://{settings.host}:{settings.port}/status"
    try:
        return Status.model_validate_json(httpx.get(url, timeout=_TIMEOUT_S).raise_for_status().content)
    except (httpx.HTTPError, ValidationError) as error:
        raise NoAnswer(f"no gateway answers at {url}: {error}; is it running with this configuration?") from error


def status_table(status: Status) -> Table:
    """The status for the terminal."""
    table = Table(title=Text(f"fleet-gateway {status.gateway}"), title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in status.model_dump().items():
        table.add_row(name.replace("_", " "), Text(str(value)))
    return table
