"""`waybill bill`: the clerk's commands of the register, and beside them what is made of several packages."""

from cloud_jobs.billing.register.commands import app

__all__ = ["app"]
