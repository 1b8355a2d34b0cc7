"""A tenant with a key: what leaves the gateway opens with that key alone. Others: it leaves as it was."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway import Produce
from gateway.cli import problems
from gateway.pulsar_producer import Sealing
from tests.gateway.strategies import settings
from waybill.identity.errors import SealingKeyError, Unsealable
from waybill.identity.sealing import Unsealer

KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))


def public_key(folder: Path) -> Path:
    file = folder / "acme.pub"
    file.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return file


def message(tenant: str, *, refused: bool = False) -> Produce:
    return Produce(1, refused, "d1", b"a batch", {"tenant": tenant, "device": "d1", "region": "eu"})


@pytest.mark.parametrize("refused", [False, True])
def test_a_message_of_a_tenant_with_a_key_opens_with_that_key_alone(tmp_path: Path, refused: bool) -> None:
    served = settings(tenants={"acme": {"sealing_key": public_key(tmp_path)}, "other": {}})
    sent = Sealing(served).sealed(message("acme", refused=refused))
    assert b"a batch" not in sent.payload
    assert Unsealer([KEY]).unseal(sent.payload, "acme", served.region) == b"a batch"
    with pytest.raises(Unsealable):
        Unsealer([X25519PrivateKey.generate()]).unseal(sent.payload, "acme", served.region)


def test_a_key_that_cannot_be_used_is_named_before_the_gateway_starts(tmp_path: Path) -> None:
    served = settings(tenants={"acme": {"sealing_key": tmp_path / "none.pub"}})
    with pytest.raises(SealingKeyError, match=r"none\.pub"):
        Sealing(served)
    (problem,) = problems(served)
    assert problem.startswith("tenants.acme.sealing_key: ")
    assert "none.pub" in problem
