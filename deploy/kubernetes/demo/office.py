"""What an operator's office prepares: keys and certificates as Secrets, and the values of both charts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.kubernetes.demo.tools import Namespace
from deploy.kubernetes.pulsar.__main__ import addresses
from deploy.local.credentials import LocalAuthority, stack_operator, trusted
from waybill.identity.registry_messages import ENROLMENT_KIND
from waybill.identity.tokens import TokenIssuer

REGION, CENTRE = "eu", "hq"
GATEWAYS = 2
NODE_PORTS = {"devices": 30883, "enrolment": 30884}
OFFICE = "office"
"""The pod in which an operator's commands run."""
LAKE = "/var/lib/waybill/lake"
_PROGRAMS: Final = "/opt/waybill/bin"
_SECRETS, _SCENARIO = "/etc/waybill/office", "/etc/waybill/scenario"
_USER = 10001


class Office:
    """The folder that the proof's Pulsar was installed from, with the keys of region and centre beside its own."""

    def __init__(self, namespace: Namespace, folder: Path, tenants: Sequence[str]) -> None:
        self._namespace, self._folder, self._tenants = namespace, folder, tenants
        self._broker = f"{REGION}-broker.{namespace.name}.svc"
        self.authority = LocalAuthority(folder, servers=(self._broker, "127.0.0.1"))
        self._tokens = TokenIssuer(folder / "tokens")
        self._operator = stack_operator(folder)
        self._access_key = folder / f"access@{REGION}.key"
        trusted(self._operator.operators_file, self._access_key, f"access@{REGION}", (ENROLMENT_KIND,))

    def secrets(self) -> list[dict[str, Any]]:
        """Of the region, of the centre, and of the office's pod."""
        make, authority = self._namespace.secret, self.authority
        region, pulsar = authority.region(REGION).folder, {"pulsar-ca.pem": authority.pulsar_file}
        operators = {"operators.toml": self._operator.operators_file}
        gateways = {f"gateway@{REGION}-{number}": f"waybill-gateway-{number}" for number in range(GATEWAYS)}
        made = [
            make(secret, {**self._client(name), "share": authority.share(REGION)}) for name, secret in gateways.items()
        ]
        broker = authority.server(f"broker@{REGION}", REGION)
        assert broker.certificate is not None
        own = {one.name: one for one in [*region.glob("*.pem"), *region.glob("issued/*.pem")]}
        return [
            *made,
            make("waybill-region", {**pulsar, **operators, "gateway.token": self._token(f"gateway-{REGION}")}),
            make("waybill-broker", {one.name: one for one in broker.certificate.parent.glob("*.pem")}),
            make("waybill-access", {"access.key": self._access_key, "access.token": self._token(f"access-{REGION}")}),
            make("waybill-access-tls", self._client(f"access@{REGION}")),
            make("waybill-authority", {"authority.key": region / "authority.key", **own}),
            make("waybill-centre", {**pulsar, **operators, "jobs.token": self._token("jobs")}),
            make(OFFICE, {**pulsar, **operators, **self._own_files()}),
        ]

    def _own_files(self) -> dict[str, Path | str]:
        """Of `waybill device` and `waybill reference put`."""
        service, admin = addresses(CENTRE, self._namespace.name)
        key = f"{_SECRETS}/operator.key"
        at = f'service_url = "{service}"\nadmin_url = "{admin}"\n'
        access = f'[access]\ntoken_file = "{_SECRETS}/ROLE.token"\ntls_ca = "{_SECRETS}/pulsar-ca.pem"\n'
        devices = f"""{at}regions = ["{REGION}"]
tenants = {json.dumps([*self._tenants])}
operators = "{_SECRETS}/operators.toml"
key = "{key}"
operator = "the-demo"
{access.replace("ROLE", "fleet-operator")}"""
        publisher = f"""lake = "{LAKE}"
checkpoints = "/var/lib/waybill/checkpoints"
[[clusters]]
name = "{CENTRE}"
{at}[reference]
operators = "{_SECRETS}/operators.toml"
{access.replace("ROLE", "publisher")}"""
        return {
            "operator.toml": devices,
            "publisher.toml": publisher,
            "operator.key": self._operator.key_file,
            "fleet-operator.token": self._token("fleet-operator"),
            "publisher.token": self._token("publisher"),
        }

    def _client(self, name: str) -> dict[str, Path]:
        files = self.authority.client(name, REGION)
        return {one.name: one for one in (files.ca, files.certificate, files.key) if one is not None}

    def _token(self, role: str) -> Path:
        return self._tokens.token_file(role)

    def region_values(self) -> dict[str, Any]:
        """Of the chart waybill-region."""
        service, admin = addresses(REGION, self._namespace.name)
        return {
            "region": REGION,
            "gateway": {"replicas": GATEWAYS},
            "pulsar": {"serviceUrl": service, "adminUrl": admin},
            "tenants": {tenant: {} for tenant in self._tenants},
            "broker": {"outside": {"type": "NodePort", "nodePorts": NODE_PORTS}},
        }

    def centre_values(self, *, executors: bool) -> dict[str, Any]:
        """Of the chart waybill-centre. Jobs compute by themselves unless `executors` is set."""
        service, admin = addresses(CENTRE, self._namespace.name)
        files = "/etc/waybill/secret"
        return {
            "settings": {
                "tenants": [*self._tenants],
                "clusters": [{"name": CENTRE, "service_url": service, "admin_url": admin}],
                "access": {"token_file": f"{files}/jobs.token", "tls_ca": f"{files}/pulsar-ca.pem"},
                "reference": {"operators": f"{files}/operators.toml"},
                # the scenario drives on a fixed day, however long ago that is
                "ingest": {"max_age_days": 36500},
            },
            "storage": {"size": "2Gi"},
            "spark": {"mode": "kubernetes" if executors else "local"},
            "jobs": {"geofence": {"enabled": False}, "maintain": {"enabled": False}},
        }

    def pod(self, image: str, claim: str, scenario: Mapping[str, str]) -> list[dict[str, Any]]:
        """The pod of the office, with its files, those of the scenario and the lake."""
        mounts = {"office": _SECRETS, "scenario": _SCENARIO, "lake": "/var/lib/waybill", "tmp": "/tmp"}  # noqa: S108 - the pod's own
        files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scenario"}, "data": dict(scenario)}
        spec = {
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": OFFICE,
                    "image": image,
                    "command": [f"{_PROGRAMS}/python", "-c", "import signal; signal.pause()"],
                    "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
                }
            ],
            "volumes": [
                {"name": "office", "secret": {"secretName": OFFICE, "defaultMode": 0o440}},
                {"name": "scenario", "configMap": {"name": "scenario"}},
                {"name": "lake", "persistentVolumeClaim": {"claimName": claim}},
                {"name": "tmp", "emptyDir": {}},
            ],
        }
        return [files, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": OFFICE}, "spec": spec}]

    def publish_reference(self) -> None:
        """`waybill reference put`, in the pod."""
        given = ("--config", f"{_SECRETS}/publisher.toml", "--key", f"{_SECRETS}/operator.key", "--reason", "the demo")
        files = (f"{_SCENARIO}/contracts.toml", f"{_SCENARIO}/fences.geojson")
        self._namespace.inside(OFFICE, f"{_PROGRAMS}/waybill", "reference", "put", *files, *given)

    def expect_devices(self) -> dict[str, str]:
        """`waybill device put`, in the pod: the one-time token of each device, by `TENANT/DEVICE`."""
        given = ("--config", f"{_SECRETS}/operator.toml", "--reason", "the demo", "--tokens", "/tmp/tokens")  # noqa: S108
        file = f"{_SCENARIO}/devices.toml"
        self._namespace.inside(OFFICE, f"{_PROGRAMS}/waybill", "device", "put", file, *given, "--wait", "30")
        found = self._namespace.inside(OFFICE, f"{_PROGRAMS}/python", "-c", _PRINT_TOKENS)
        return dict(json.loads(found))

    def waybill(self, *words: str) -> Any:
        """What a command on the lake says as JSON; exit status 3 is "done except for what is named"."""
        command = (f"{_PROGRAMS}/waybill", *words, "--lake", LAKE, "--json")
        return json.loads(self._namespace.inside(OFFICE, *command, accepts={0, 3}))


_PRINT_TOKENS: Final = """
import json, pathlib
root = pathlib.Path("/tmp/tokens")
files = {str(one.relative_to(root).with_suffix("")): one.read_text() for one in root.glob("*/*.token")}
print(json.dumps(files))
"""
