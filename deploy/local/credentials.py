"""Who is who in one stack: its authority, its servers' certificates, and a token for each role."""

import time
from pathlib import Path

from deploy.local.authority import LocalAuthority
from deploy.local.key_server import TokenKeyServer
from deploy.local.ports import PortBook
from deploy.local.pulsar import PulsarSecurity
from geo.replication import Topology
from geo.replication.model import BROKERS
from waybill.daemon.durable_file import replace_durably
from waybill.identity.names import PrincipalKind, principal
from waybill.identity.tokens import TokenIssuer
from waybill.pulsar.pulsar_client import PulsarAccess

__all__ = ["ACCESS_FILE", "OPERATOR", "StackCredentials", "stack_access"]

OPERATOR = "operator"
"""Who may do everything in every cluster."""
_FLEET_OPERATOR = "fleet-operator"
ACCESS_FILE = "operator-access.toml"
"""The operator's access, beside the topology: what `waybill topology` takes where nothing else is named."""


def stack_access(folder: Path, role: str = OPERATOR) -> PulsarAccess:
    """A role's access to the stack of this folder, for another process; nothing where the stack is insecure."""
    if not (folder / ACCESS_FILE).exists():
        return PulsarAccess()
    access = folder.absolute() / "access"
    return PulsarAccess(token_file=access / "tokens" / f"{role}.token", tls_ca=access / "pulsar-authority.pem")


class StackCredentials:
    """Who is who for the Pulsar clusters of a stack, in the folder `access` of its folder.

    The keys of tokens outlive the stack; tokens are made anew when half of their life is over (`renew`).
    """

    def __init__(
        self, folder: Path, authority: LocalAuthority, topology: Topology, ports: PortBook, token_life_s: float
    ) -> None:
        self._folder = folder
        self._life_s = token_life_s
        self.authority = authority
        port = ports.port("token-keys")
        self.issuer = TokenIssuer(folder / "access", f"https://127.0.0.1:{port}")
        self.key_server = TokenKeyServer(
            folder / "token-keys",
            port,
            self.authority.pulsar_server(principal(PrincipalKind.PULSAR, "token-keys")),
            self.issuer.published,
        )
        self._topology = topology
        self._brokers = {name: topology.role_of_brokers(name) or BROKERS for name in topology.clusters}
        self.roles = sorted({*topology.roles_by_name(), *self._brokers.values(), OPERATOR})
        self.renew()

    def access(self, role: str) -> PulsarAccess:
        """What a process of this role shows and trusts. Raises ValueError for a role that the topology has not."""
        if role not in self.roles:
            raise ValueError(f"no role {role!r} in this stack; it has {', '.join(self.roles)}")
        return PulsarAccess(token_file=self.issuer.token_file(role), tls_ca=self.authority.pulsar_file)

    @property
    def operator_of_devices(self) -> str:
        """The role for `waybill device`, which needs few rights; a topology of somebody else may not have it."""
        return _FLEET_OPERATOR if _FLEET_OPERATOR in self.roles else OPERATOR

    def of_cluster(self, name: str) -> PulsarSecurity:
        """What a cluster needs to know who is who."""
        return PulsarSecurity(
            tls=self.authority.pulsar_server(principal(PrincipalKind.PULSAR, name)),
            issuer=self.issuer.issuer,
            broker_token=self.issuer.token_file(self._brokers[name]),
            superusers=tuple(sorted({*self._topology.superusers_of(name), OPERATOR})),
            operator_token=self.issuer.token_file(OPERATOR),
        )

    def renew(self) -> None:
        """Issue anew the tokens that are in the second half of their life, and say where the operator's is."""
        self.issuer.renew(self.roles, now_s=time.time(), life_s=self._life_s)

    def write_access_file(self) -> None:
        """Where the operator's access is, for commands."""
        access = self.access(OPERATOR)
        lines = [f'token_file = "{access.token_file}"', f'tls_ca = "{access.tls_ca}"']
        lines.append(f'role_tokens = "{self.issuer.token_file(OPERATOR).parent}"')
        replace_durably(self._folder / ACCESS_FILE, ("\n".join(lines) + "\n").encode(), mode=0o600)
