"""Who was not let in by a cluster, where, and what to do: in words."""

from __future__ import annotations

from waybill.identity.tokens import InvalidToken, read_claims
from waybill.pulsar.pulsar_client import AccessRefusal, PulsarAccess, PulsarAccessError, PulsarToken

__all__ = ["refusal_text", "whom_named"]


def whom_named(access: PulsarAccess) -> str:
    """Who an access says that we are: the role and the file that names it."""
    where = f" ({access.token_file})" if access.token_file else ""
    try:
        token = PulsarToken(access)
        role = read_claims(token()).role if token else ""
    except (PulsarAccessError, InvalidToken):
        return f"the token{where}"
    if role:
        return f"the role {role}{where}"
    return "nobody, as [access] names no token," if access.tls_certificate is None else str(access.tls_certificate)


def refusal_text(refusal: AccessRefusal, problem: str, access: PulsarAccess, topic: str, right: str) -> str:
    """Why a cluster did not let us do something with a topic; `right`: what it needs, `consume` or `produce`."""
    match refusal:
        case AccessRefusal.NO_RIGHT:
            return (
                f"{whom_named(access)} may not {right} {topic}: name the token of a role that may, or grant "
                f"{right} to this one in the topology"
            )
        case AccessRefusal.UNKNOWN:
            return (
                f"the cluster does not take {whom_named(access)}: the token has ended, or another issuer signed it; "
                "write a new one (waybill pki token ROLE)"
            )
        case AccessRefusal.HELD:
            return f"another producer has {topic} for itself alone: see 'A hostile tenant' in docs/runbooks/access.md"
        case AccessRefusal.UNUSABLE:
            return problem
