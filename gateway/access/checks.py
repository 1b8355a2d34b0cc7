"""What the access daemon's settings must not be without an explicit word, and whose its certificate is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gateway.access.config import AccessSettings
from gateway.registry_settings import open_registry
from identity import IdentityError, read_certificates
from identity.authority import common_name
from identity.names import PrincipalKind, principal

__all__ = ["problems"]

_WORD = "or say insecure = true at the top"


def problems(settings: AccessSettings) -> list[str]:
    """Why the daemon does not start with these settings: each names the setting and what to do."""
    return [*_names(settings), *([] if settings.insecure else _open(settings))]


def _open(settings: AccessSettings) -> Iterator[str]:
    for key, fault in open_registry(settings.registry):
        yield f"registry.{key}: {fault}, {_WORD}"
    if (enrolment := settings.enrolment) is not None:
        if enrolment.claims.tls is None:
            yield f"enrolment.claims.tls: our password travels in plain text: set ca, {_WORD}"
        if enrolment.devices.tls is None:
            yield f"enrolment.devices.tls: certificates are given in plain text: set ca, certificate and key, {_WORD}"


def _names(settings: AccessSettings) -> Iterator[str]:
    tls = settings.enrolment.devices.tls if settings.enrolment is not None else None
    own = principal(PrincipalKind.ACCESS, settings.region)
    if tls is None or tls.certificate is None:
        return
    with contextlib.suppress(OSError, ValueError, IdentityError):
        named = common_name(read_certificates(tls.certificate.read_bytes())[0].subject)
        if named != own:
            yield (
                f"enrolment.devices.tls.certificate: {tls.certificate} is of {named!r}, and this daemon is {own!r}: "
                f"set region, or make its certificate with `waybill pki access {settings.region}`"
            )
