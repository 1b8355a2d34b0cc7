"""The stack's S3 server: a bucket, commits that are made once, credentials that nobody reads, data that stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyarrow.fs import S3FileSystem

from deploy.local import ObjectStore

pytestmark = [pytest.mark.system, pytest.mark.own_servers]


def credentials(store: ObjectStore) -> tuple[str, str]:
    parser = ConfigParser()
    parser.read_string(store.credentials_file.read_text())
    return parser["default"]["aws_access_key_id"], parser["default"]["aws_secret_access_key"]


def file_system(store: ObjectStore, secret: str = "") -> S3FileSystem:
    key, right = credentials(store)
    address = f"127.0.0.1:{store.port}"
    return S3FileSystem(
        endpoint_override=address, scheme="http", region=store.region, access_key=key, secret_key=secret or right
    )


def delta_options(store: ObjectStore) -> dict[str, str]:
    key, secret = credentials(store)
    return {
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": store.region,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "aws_conditional_put": "etag",
    }


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    running = ObjectStore(tmp_path / "s3")
    running.start()
    running.wait()
    yield running
    running.stop()


def test_of_commits_made_at_once_none_is_lost(store: ObjectStore) -> None:
    options = delta_options(store)
    uri = f"s3://{store.bucket}/of/several"
    write_deltalake(uri, pa.table({"writer": [0]}), storage_options=options)

    def write(writer: int) -> None:
        left = 3
        while left:
            # one that was overtaken 15 times gives up, and says that it wrote nothing
            with suppress(CommitFailedError):
                write_deltalake(uri, pa.table({"writer": [writer]}), mode="append", storage_options=options)
                left -= 1

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    table = DeltaTable(uri, storage_options=options)
    assert table.version() == 24
    assert sorted(table.to_pyarrow_table()["writer"].to_pylist()) == sorted([0, *(list(range(1, 9)) * 3)])


def test_the_credentials_are_of_this_store_and_only_its_owner_reads_them(store: ObjectStore, tmp_path: Path) -> None:
    key, secret = credentials(store)
    assert store.credentials_file.stat().st_mode & 0o777 == 0o600
    assert store.pid is not None
    command_line = Path(f"/proc/{store.pid}/cmdline").read_bytes().decode()
    shown = [command_line, store.log.read_text(), *store.addresses().values()]
    assert not any(key in text or secret in text for text in shown)
    with pytest.raises(OSError, match=r"(?i)access.?denied|signature.?does.?not.?match"):
        file_system(store, secret="0" * 40).open_output_stream(f"{store.bucket}/foreign").close()
    other = ObjectStore(tmp_path / "other")
    other.prepare()
    assert not {key, secret} & set(credentials(other))
