"""Who is who in the region of a benchmark: the authority of the local stack, and tokens for two roles of Pulsar."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from deploy.local import free_port
from deploy.local.authority import LocalAuthority
from deploy.local.key_server import TokenKeyServer
from deploy.local.mosquitto import TlsFiles
from deploy.local.pulsar import PulsarSecurity
from identity import PrincipalKind, TokenIssuer, principal
from runtime.pulsar_client import PulsarAccess

_OPERATOR, _BROKERS = "operator", "brokers"
_LIFE_S = 86_400.0


class RegionCredentials:
    """Certificates, and a token for the operator, the broker and the gateways. `role`: the gateways'."""

    def __init__(self, folder: Path, region: str) -> None:
        self.authority = LocalAuthority(folder)
        self.role = f"gateway-{region}"
        self._region = region
        port = free_port()
        self._issuer = TokenIssuer(folder, f"https://127.0.0.1:{port}")
        self._issuer.renew([_OPERATOR, _BROKERS, self.role], now_s=time.time(), life_s=_LIFE_S)
        keys = self.authority.server(principal(PrincipalKind.PULSAR, "token-keys"), region)
        self.key_server = TokenKeyServer(folder / "token-keys", port, keys, self._issuer.published)
        self.gateway = PulsarAccess(token_file=self._issuer.token_file(self.role), tls_ca=self.authority.file)
        self.operator = PulsarAccess(token_file=self._issuer.token_file(_OPERATOR), tls_ca=self.authority.file)

    def server(self, kind: PrincipalKind) -> TlsFiles:
        """The certificate and key of a server of the region."""
        return self.authority.server(principal(kind, self._region), self._region)

    def of_cluster(self) -> PulsarSecurity:
        """What the region's cluster needs to know who is who."""
        return PulsarSecurity(
            tls=self.server(PrincipalKind.PULSAR),
            issuer=self._issuer.issuer,
            broker_token=self._issuer.token_file(_BROKERS),
            superusers=(_OPERATOR, _BROKERS),
            operator_token=self._issuer.token_file(_OPERATOR),
        )

    def put(self, url: str, body: object, method: str = "PUT") -> None:
        """A request to Pulsar's admin interface as the operator."""
        token = self._issuer.token_file(_OPERATOR).read_text()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(verify=str(self.authority.file), headers=headers, timeout=20) as client:
            answer = client.request(method, url, json=body)
        assert answer.is_success, answer.text
