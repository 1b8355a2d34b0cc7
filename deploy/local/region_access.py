"""What guards one region of a stack: the files of its brokers, its enrolment broker, and its access daemon."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.local.authority import LocalAuthority
from deploy.local.daemon import DaemonProcess
from deploy.local.enrolment_broker import EnrolmentBroker, EnrolmentBrokerFiles
from deploy.local.mosquitto import MosquittoBroker
from deploy.local.ports import PortBook
from deploy.local.server_health import http_health
from deploy.local.stack_operator import StackOperator, daemon_key
from waybill.daemon.durable_file import replace_durably
from waybill.identity.names import PrincipalKind, principal
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import load

__all__ = ["RegionAccess", "exchange_lists"]


class RegionAccess:
    """One region's. `daemon` runs once the topology is applied; `prepare` makes the files that brokers need before.

    `settings_file` is that of `fleet-gateway access`.
    """

    def __init__(self, broker: MosquittoBroker, folder: Path, authority: LocalAuthority, ports: PortBook) -> None:
        self.region, self._broker, self._folder, self._authority = broker.region, broker, folder, authority
        self._ports = ports
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.settings_file = folder / "access.toml"
        self._enrolment_folder = folder.with_name(f"enrolment-{self.region}")
        self._claims = {"rules": folder / "enrolment.acl", "passwords": folder / "enrolment.passwords"}
        self.revocation_file = broker.access_files.revocations

    def prepare(
        self,
        urls: Mapping[str, str],
        access: PulsarAccess,
        operator: StackOperator,
        gateways: Sequence[str],
        tenants: Sequence[str],
    ) -> tuple[EnrolmentBroker, DaemonProcess]:
        """Writes the daemon's settings and the brokers' first files; the two servers, not started.

        `urls`: the region's cluster's, as settings name them. `tenants`: whose devices are known.
        """
        # Where a stack starts: a command that only looks at one needs neither.
        from gateway.access import AccessSettings  # noqa: PLC0415
        from gateway.access.daemon import AccessDaemon  # noqa: PLC0415

        server = self._authority.server(principal(PrincipalKind.BROKER, self.region), self.region)
        port = self._ports.port(f"access-{self.region}")
        key = daemon_key(operator, self._folder, principal(PrincipalKind.ACCESS, self.region))
        tables = self._tables({**urls, "tenants": list(tenants)}, access, operator, key) | {"status": {"port": port}}
        head = {"region": self.region, "gateways": list(gateways)}
        replace_durably(self.settings_file, _toml({"": head} | tables).encode(), mode=0o600)
        AccessDaemon(load(AccessSettings, self.settings_file)).prepare()
        files = EnrolmentBrokerFiles(
            certificate=server.certificate, key=server.key, factory_ca=self._authority.file, **self._claims
        )
        url = f"http://127.0.0.1:{port}"
        daemon = DaemonProcess.python(
            f"access-{self.region}",
            "gateway",
            ["access", "run", "--config", str(self.settings_file)],
            self._folder,
            healthy_when=http_health(f"{url}/health"),
            addresses={"status": f"{url}/status"},
        )
        return EnrolmentBroker(self.region, self._enrolment_folder, files, ports=self._ports), daemon

    def _tables(
        self, registry: Mapping[str, object], access: PulsarAccess, operator: StackOperator, key: Path
    ) -> dict[str, Mapping[str, object]]:
        own = self._authority.client(principal(PrincipalKind.ACCESS, self.region), self.region)
        broker, claims = self._broker, f"enrolment-{self.region}"
        files = broker.access_files
        return {
            "broker": {
                "rules_file": broker.rules_file,
                "revocation_file": files.revocations,
                "password_file": files.passwords,
                "guard_socket": files.guard_socket,
                "guard_secret_file": self._folder / "guard.secret",
                "pid_file": files.pid,
                "log_file": broker.log,
            },
            "registry": {**registry, "operators": operator.operators_file, "key": key},
            "registry.access": {"token_file": access.token_file, "tls_ca": access.tls_ca},
            "authority": {"folder": self._authority.region(self.region).folder},
            "enrolment": {"secret_file": self._folder / "enrolment.secret"},
            "enrolment.broker": {
                "rules_file": self._claims["rules"],
                "password_file": self._claims["passwords"],
                "pid_file": self._enrolment_folder / "mosquitto.pid",
                "log_file": self._enrolment_folder / f"{claims}.log",
            },
            "enrolment.claims": {"port": self._ports.port(claims), "backoff_max_s": 5.0},
            "enrolment.claims.tls": {"ca": own.ca},
            "enrolment.devices": {"port": broker.port, "backoff_max_s": 5.0},
            "enrolment.devices.tls": {"ca": own.ca, "certificate": own.certificate, "key": own.key},
        }


def exchange_lists(regions: Sequence[RegionAccess]) -> None:
    """Gives each broker the lists of all regions before any starts: devices of one may come to another at once."""
    lists = {one.region: one.revocation_file.read_bytes() for one in regions}
    for one in regions:
        # What a daemon put together is not taken apart: its file has the others' lists already.
        if lists[one.region].count(b"BEGIN X509 CRL") < len(regions):
            others = [found for region, found in lists.items() if region != one.region]
            replace_durably(one.revocation_file, b"".join([lists[one.region], *others]), mode=0o640)


def _toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    lines: list[str] = []
    for name, table in tables.items():
        lines += [f"[{name}]"] if name else []
        # What is no number and no list is a path or a name: TOML's strings are JSON's.
        lines += [
            f"{key} = {json.dumps(value if isinstance(value, int | float | list) else str(value), ensure_ascii=False)}"
            for key, value in table.items()
            if value is not None
        ]
    return "\n".join(lines) + "\n"
