"""What is said of the certificates that the uplinks show: in status, metrics and health."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from edge_agent.config import AgentSettings
from edge_agent.enrolment.certificate_folder import CertificateFolder, HeldCertificate, read_held

ENDS_SOON_SHARE = 0.1
"""Of its life that is left: by then it should have been renewed long ago."""


def certificate_folder(settings: AgentSettings) -> CertificateFolder | None:
    """Where the device's own certificates are; None for a device that is not enrolled but given its files."""
    if settings.enrolment is None:
        return None
    folder = settings.enrolment.folder or settings.buffer.path / "certificates"
    return CertificateFolder(folder, settings.device.tenant, settings.device.id)


def certificate_state(settings: AgentSettings, now_s: float) -> dict[str, Any]:
    """`certificate`: `valid`, `ends soon`, `expired`, `none` (it is needed and missing) or `not used`.

    Of several that uplinks show, the one that ends first. `certificate_ends`: when, as text and in seconds since 1970.
    """
    shown = [*_shown(settings)]
    held = [one for one in shown if one is not None]
    if not held:
        return {"certificate": "none" if shown else "not used", "certificate_ends": None, "certificate_ends_s": 0}
    first = min((one.validity for one in held), key=lambda one: one.not_after_s)
    ends = datetime.fromtimestamp(first.not_after_s, UTC)
    if now_s >= first.not_after_s:
        state = "expired"
    elif first.not_after_s - now_s < ENDS_SOON_SHARE * first.life_s:
        state = "ends soon"
    else:
        state = "none" if len(held) < len(shown) else "valid"
    return {
        "certificate": state,
        "certificate_ends": f"{ends:%Y-%m-%dT%H:%M:%SZ}",
        "certificate_ends_s": int(first.not_after_s),
    }


def _shown(settings: AgentSettings) -> Iterator[HeldCertificate | None]:
    """The certificate of each uplink that shows one, or would."""
    folder = certificate_folder(settings)
    for uplink in settings.uplinks:
        if uplink.tls is None:
            continue
        if uplink.tls.certificate is not None:
            yield read_held(uplink.tls.certificate)
        elif folder is not None and uplink.kind == "mqtt":
            yield folder.newest()
