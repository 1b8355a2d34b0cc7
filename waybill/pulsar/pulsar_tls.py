"""TLS to a Pulsar cluster for what is no Pulsar client: its admin interface, its clock, its binary protocol.

Where no `tls_ca` is given a server is known by the authorities of this machine, which Pulsar's own client trusts too.
"""

from __future__ import annotations

import ssl
from functools import cache

from waybill.daemon.tls import TlsSettings, load_key_pair, tls_context
from waybill.pulsar.pulsar_client import PulsarAccess, PulsarAccessError

__all__ = ["access_tls_context"]


def access_tls_context(access: PulsarAccess) -> ssl.SSLContext:
    """How to know who they are, and how to show who we are, on a connection with TLS. Raises PulsarAccessError."""
    pair = access.key_pair()
    if access.tls_ca is None and pair is None and access.tls_validate_hostname:
        return _usual_context()
    try:
        if access.tls_ca is None:
            context = ssl.create_default_context()
            if pair:
                load_key_pair(context, *pair)
        else:
            context = tls_context(TlsSettings(ca=access.tls_ca, certificate=access.tls_certificate, key=access.tls_key))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = ", ".join(str(file) for file in (access.tls_ca, *(pair or ())) if file)
        raise PulsarAccessError(f"the TLS files cannot be used ({files}): {error}") from error
    context.check_hostname = access.tls_validate_hostname
    return context


@cache
def _usual_context() -> ssl.SSLContext:
    """Building one takes 20 ms: it reads every certificate of the machine."""
    return ssl.create_default_context()
