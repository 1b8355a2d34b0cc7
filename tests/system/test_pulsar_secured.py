"""Who may not: every way into the clusters of the stack without the right is refused, and a key changes under load."""

import time
from contextlib import closing
from pathlib import Path

import httpx
import pulsar
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr

from deploy.local import LocalStack
from tests.pulsar_clients import http_access
from waybill.identity.tokens import TokenKey
from waybill.pulsar.pulsar_client import PulsarAccess, access_tls_context, open_pulsar_client

pytestmark = pytest.mark.system

_ASKED_S = 3
BATCHES = "persistent://fleet/telemetry-eu/batches"
OPERATORS = "/admin/v2/tenants"


def issued(stack: LocalStack, role: str = "operator", *, life_s: float = 600, key: TokenKey | None = None) -> str:
    """A token in clear, of the stack's own key or of another."""
    assert stack.credentials
    issuer = stack.credentials.issuer
    if key is not None:
        return key.token(role, issuer=issuer.issuer, now_s=time.time(), life_s=life_s)
    file = issuer.token_file(role)
    kept = file.read_bytes()
    try:
        return issuer.issue(role, now_s=time.time(), life_s=life_s).read_text()
    finally:
        file.write_bytes(kept)


def shown(stack: LocalStack, token: str) -> PulsarAccess:
    return PulsarAccess(token=SecretStr(token), tls_ca=stack.access().tls_ca)


def status_of(stack: LocalStack, access: PulsarAccess, cluster: str = "eu") -> int:
    """What the admin REST answers to a question that is an operator's."""
    with httpx.Client(timeout=20, **http_access(access)) as http:
        return http.get(stack.pulsar[cluster].admin_url + OPERATORS).status_code


def may_produce(stack: LocalStack, access: PulsarAccess, cluster: str = "eu", topic: str = BATCHES) -> bool:
    """Whether a producer is let in; who is nobody is not answered, and its client asks until its time is over."""
    with closing(open_pulsar_client(stack.pulsar[cluster].service_url, access, timeout_s=_ASKED_S)) as client:
        try:
            client.create_producer(topic).close()
        except (pulsar.AuthorizationError, pulsar.AuthenticationError, pulsar.ConnectError, pulsar.Timeout):
            return False
        return True


def failures(stack: LocalStack) -> float:
    """What the broker counted, as an operator's monitoring sees it."""
    with httpx.Client(timeout=20, follow_redirects=True, **http_access(stack.access())) as http:
        text = http.get(f"{stack.pulsar['eu'].admin_url}/metrics/").text
    lines = [line for line in text.splitlines() if line.startswith("pulsar_authentication_failures_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_nobody_and_an_expired_and_a_forged_token_are_refused_at_both_addresses_and_counted(stack: LocalStack) -> None:
    before = failures(stack)
    stranger = TokenKey(ec.generate_private_key(ec.SECP256R1()))
    refused = {
        "none": PulsarAccess(tls_ca=stack.access().tls_ca),
        "expired": shown(stack, issued(stack, life_s=-5)),
        "of another key": shown(stack, issued(stack, key=stranger)),
    }
    assert {name: status_of(stack, access) for name, access in refused.items()} == dict.fromkeys(refused, 401)
    assert not any(may_produce(stack, access) for access in refused.values())
    assert status_of(stack, stack.access()) == 200
    assert may_produce(stack, stack.access())
    assert failures(stack) >= before + 3


def test_another_authority_is_trusted_by_no_client_and_plain_text_is_answered_by_no_port(
    stack: LocalStack, tmp_path: Path
) -> None:
    cluster, token = stack.pulsar["eu"], stack.access().token_file
    trusted = stack.access().tls_ca
    assert trusted is not None
    assert may_produce(stack, PulsarAccess(token_file=token, tls_ca=trusted))
    system = PulsarAccess(token_file=token)
    assert not may_produce(stack, system), "an authority of our own is none that the machine knows"
    with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
        httpx.get(cluster.admin_url + OPERATORS, verify=access_tls_context(system), timeout=20)
    plain = f"127.0.0.1:{cluster.broker_port}", f"127.0.0.1:{cluster.web_port}"
    with (
        closing(open_pulsar_client(f"pulsar://{plain[0]}", system, timeout_s=_ASKED_S)) as client,
        pytest.raises(pulsar.PulsarException),
    ):
        client.create_producer(BATCHES)
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{plain[1]}{OPERATORS}", timeout=20)
