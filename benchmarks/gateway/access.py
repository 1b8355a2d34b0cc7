"""Who is who in the region of a benchmark: the local stack's authority and operator, and a token for each role."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from deploy.local import free_port
from deploy.local.authority import LocalAuthority
from deploy.local.key_server import TokenKeyServer
from deploy.local.mosquitto import TlsFiles
from deploy.local.pulsar import PulsarSecurity
from deploy.local.stack_operator import stack_operator
from waybill.identity.names import PrincipalKind, principal
from waybill.identity.token_issuer import TokenIssuer
from waybill.pulsar.pulsar_client import PulsarAccess

_OPERATOR, _BROKERS = "operator", "brokers"
_LIFE_S = 86_400.0


class RegionCredentials:
    """Certificates, and tokens with the roles that a region has in the local stack's topology.

    `role`: the gateways'; `access_role`: the access daemon's; `devices_role`: whose who changes the registry.
    """

    def __init__(self, folder: Path, region: str) -> None:
        self.authority = LocalAuthority(folder)
        self.operator = stack_operator(folder)
        self.role, self.access_role, self.devices_role = f"gateway-{region}", f"access-{region}", "fleet-operator"
        self._region = region
        port = free_port()
        self._issuer = TokenIssuer(folder, f"https://127.0.0.1:{port}")
        roles = [_OPERATOR, _BROKERS, self.role, self.access_role, self.devices_role]
        self._issuer.renew(roles, now_s=time.time(), life_s=_LIFE_S)
        keys = self.authority.pulsar_server(principal(PrincipalKind.PULSAR, "token-keys"))
        self.key_server = TokenKeyServer(folder / "token-keys", port, keys, self._issuer.published)
        self.gateway = self.access(self.role)

    def access(self, role: str) -> PulsarAccess:
        """What a process of this role shows Pulsar, and trusts."""
        return PulsarAccess(token_file=self._issuer.token_file(role), tls_ca=self.authority.pulsar_file)

    def server(self, kind: PrincipalKind) -> TlsFiles:
        """The certificate and key of a server of the region."""
        return self.authority.server(principal(kind, self._region), self._region)

    def of_cluster(self) -> PulsarSecurity:
        """What the region's cluster needs to know who is who."""
        return PulsarSecurity(
            tls=self.authority.pulsar_server(principal(PrincipalKind.PULSAR, self._region)),
            issuer=self._issuer.issuer,
            broker_token=self._issuer.token_file(_BROKERS),
            superusers=(_OPERATOR, _BROKERS),
            operator_token=self._issuer.token_file(_OPERATOR),
        )

    def put(self, url: str, body: object, method: str = "PUT") -> None:
        """A request to Pulsar's admin interface as the operator."""
        token = self._issuer.token_file(_OPERATOR).read_text()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(verify=str(self.authority.pulsar_file), headers=headers, timeout=20) as client:
            answer = client.request(method, url, json=body)
        assert answer.is_success, answer.text
