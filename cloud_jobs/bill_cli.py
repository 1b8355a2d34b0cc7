"""`waybill bill`: the clerk's commands of the register, and beside them what is made of several packages."""

from cloud_jobs.billing.register.commands import app
from cloud_jobs.explain_cli import explain

__all__ = ["app"]

app.command()(explain)
