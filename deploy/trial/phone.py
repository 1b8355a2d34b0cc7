"""A phone as the device of a trial: a listener of its own on the local network, and the QR code that sets the phone up.

The phone's broker is a second Mosquitto with a user and a random password. It passes what the phone may write on to the
vehicle's broker, which stays on loopback.
"""

from __future__ import annotations

import base64
import getpass
import io
import json
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import segno

from deploy.local import DaemonProcess
from deploy.local.mosquitto import mosquitto_program
from deploy.local.server import port_is_open
from deploy.trial.errors import TrialError
from waybill.identity.claims import broker_password, password_file

USER: Final = "phone"
FILTER: Final = f"owntracks/{USER}/#"
_SALT_BYTES: Final = 12
_NOWHERE: Final = ("192.0.2.1", 9)
"""TEST-NET-1 of RFC 5737: a datagram socket that is connected to it sends nothing, and has the address of the route."""


def lan_address() -> str:
    """This machine's address on the local network. Raises TrialError."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_NOWHERE)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise TrialError(f"this machine has no network that a phone could be on: {error.strerror}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PhoneListener:
    """Where the phone publishes, and with which credentials. The password is shown in the QR code alone."""

    address: str
    port: int
    device: str
    password: str = field(default_factory=lambda: secrets.token_urlsafe(18), repr=False)

    @classmethod
    def on(cls, address: str, device: str) -> Self:
        """A listener on a free port of an address. Raises TrialError."""
        try:
            with socket.socket() as probe:
                probe.bind((address, 0))
                port = int(probe.getsockname()[1])
        except OSError as error:
            raise TrialError(f"{address} is not an address of this machine: {error.strerror}") from error
        return cls(address=address, port=port, device=device)

    @property
    def exposed(self) -> str:
        """What is opened to whom."""
        return (
            f"This opens TCP port {self.port} on {self.address} to everybody on that network, until Ctrl-C.\n"
            f"It is an MQTT listener with a random password, which may only write to {FILTER}.\n"
            "It has no TLS: anyone on this network can read the password and the positions."
        )

    @property
    def setup_url(self) -> str:
        """What OwnTracks opens to take over its configuration."""
        configuration = {
            "_type": "configuration",
            "mode": 0,
            "host": self.address,
            "port": self.port,
            "tls": False,
            "auth": True,
            "username": USER,
            "password": self.password,
            "deviceId": self.device,
            "clientId": self.device,
            "tid": self.device[-2:],
            "pubTopicBase": "owntracks/%u/%d",
            "pubQos": 1,
            "monitoring": 2,
        }
        return f"owntracks:///config?inline={base64.urlsafe_b64encode(json.dumps(configuration).encode()).decode()}"

    @property
    def way_out(self) -> str:
        """What helps when no message comes."""
        return f"in OwnTracks, Status must say connected to {self.address}:{self.port}; then publish a location by hand"

    def qr_code(self) -> str:
        """The set-up as a QR code for a terminal."""
        drawn = io.StringIO()
        segno.make(self.setup_url, error="l").terminal(drawn, compact=True)
        return f"Scan with OwnTracks on the phone, in the same network:\n{drawn.getvalue()}"

    def configuration(self, folder: Path, vehicle_port: int) -> Sequence[str]:
        """The lines of the phone's broker, which passes messages on to the vehicle's."""
        return [
            f"listener {self.port} {self.address}",
            "allow_anonymous false",
            f"password_file {folder / 'passwords'}",
            f"acl_file {folder / 'rules.acl'}",
            "max_qos 1",
            "max_connections 8",
            "max_packet_size 65536",
            "max_queued_messages 10000",
            "persistence true",
            f"persistence_location {folder}/",
            f"user {getpass.getuser()}",
            "connection vehicle",
            f"address 127.0.0.1:{vehicle_port}",
            f"topic {FILTER} out 1",
            "cleansession false",
            "notifications false",
            "try_private false",
        ]

    def server(self, folder: Path, vehicle_port: int) -> DaemonProcess:
        """The phone's broker, not started yet; its files are written into `folder`."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        hashed = broker_password(self.password, secrets.token_bytes(_SALT_BYTES))
        files = {
            "passwords": password_file({USER: hashed}).decode(),
            "rules.acl": f"user {USER}\ntopic write {FILTER}\n",
            "mosquitto.conf": "\n".join([*self.configuration(folder, vehicle_port), ""]),
        }
        for name, text in files.items():
            (folder / name).touch(mode=0o600)
            (folder / name).write_text(text)
        command = [mosquitto_program(), "-c", str(folder / "mosquitto.conf")]
        healthy = lambda: port_is_open(self.port, self.address)  # noqa: E731 - one expression
        return DaemonProcess("phone", command, folder, healthy_when=healthy)
