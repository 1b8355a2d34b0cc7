"""The commands of the register, as `waybill bill` has them, without the other commands of `waybill`."""

from cloud_jobs.billing.register.commands import app

if __name__ == "__main__":
    app()
