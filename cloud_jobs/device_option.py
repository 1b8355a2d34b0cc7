"""A device as people write it on a command line, and as screens and reasons show it."""

from __future__ import annotations

import typer

from cloud_jobs.lake.coverage import TenantDevice

__all__ = ["device_of"]


def device_of(text: str) -> TenantDevice:
    """The device that TENANT/DEVICE names. Raises BadParameter."""
    tenant, stroke, name = text.partition("/")
    if not (tenant and stroke and name):
        raise typer.BadParameter(f"{text!r} is no device: write TENANT/DEVICE")
    return TenantDevice(tenant, name)
