"""Lakes on an S3 server of the test's own, and copies of them."""

from __future__ import annotations

import subprocess

from cloud_jobs.lake.location import Location, S3Access
from deploy.local import ObjectStore


def place(store: ObjectStore, prefix: str, endpoint: str | None = None) -> Location:
    """Where a lake is in the store's bucket; reached at another endpoint, if one is given."""
    access = S3Access(endpoint=endpoint or store.endpoint, region=store.region, credentials_file=store.credentials_file)
    return Location.of(f"s3://{store.bucket}/{prefix}", access, {})


def copy_lake(store: ObjectStore, prefix: str, copy: str) -> None:
    """A copy of what is at a prefix, at another one."""
    folder = store.folder / "data" / store.bucket
    # with the attributes that the store keeps of its objects
    subprocess.run(["cp", "-a", folder / prefix, folder / copy], check=True)
