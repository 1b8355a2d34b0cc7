"""A key with a passphrase is an error wherever keys are loaded, and never a question to a terminal."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from cloud_jobs.pulsar_source import OptionError
from cloud_jobs.pulsar_source.admin import SourceAdmin
from cloud_jobs.pulsar_source.feeds import shared_client
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster, TopicName
from deploy.local import LocalAuthority
from waybill.daemon.tls import TlsSettings, check_key_pair, tls_context
from waybill.pulsar.pulsar_client import PulsarAccess


def with_passphrase(own):
    """The same certificate with a key that is locked."""
    key = serialization.load_pem_private_key(own.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    own.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    return own


def test_a_key_without_a_passphrase_is_loaded(tmp_path: Path) -> None:
    own = LocalAuthority(tmp_path).client("fleet/eu-0001")
    check_key_pair(own.certificate, own.key)
    with pytest.raises(OSError, match="No such file"):
        check_key_pair(own.certificate, tmp_path / "none")


def test_a_key_with_a_passphrase_is_refused_by_agent_and_gateway_and_the_source(tmp_path: Path) -> None:
    own = with_passphrase(LocalAuthority(tmp_path).client("fleet/eu-0001"))
    with pytest.raises(ValueError, match="has a passphrase"):
        tls_context(TlsSettings(ca=own.ca, certificate=own.certificate, key=own.key))
    files = {"tls_certificate": own.certificate, "tls_key": own.key}
    cluster = SourceCluster(name="hq", service_url="pulsar+ssl://127.0.0.1:1", admin_url="https://127.0.0.1:1")
    with pytest.raises(OptionError, match="has a passphrase"):
        SourceAdmin(cluster, PulsarAccess(**files), 1.0)
    options = PulsarOptions(clusters=(cluster,), topics=(TopicName("t", "n", "x"),), subscription="s", **files)
    with pytest.raises(OptionError, match="has a passphrase"):
        shared_client(cluster, options)
