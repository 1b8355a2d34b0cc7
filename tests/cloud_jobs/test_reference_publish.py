"""Publishing judges files as checking does, beside what the lake of the settings has, and publishes all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cloud_jobs import reference_publisher
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference_cli import app
from simulator.toml_text import toml_text
from tests.cloud_jobs.billing.contracts.makers import account, device, kind_of, legal_entity, price, rows, tariff


class Published:
    """Takes the place of the clusters: what was sent to them."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def publish(self, _: Any, versions: Any, *__: Any) -> int:
        self.keys += [version.key for version in versions]
        return len(self.keys)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Published:
    made = Published()
    monkeypatch.setattr(reference_publisher, "publish", made.publish)
    return made


def publish(folder: Path, *bodies: dict[str, Any]) -> Result:
    tables: dict[str, list[dict[str, Any]]] = {}
    for body in bodies:
        tables.setdefault(kind_of(body), []).append(body)
    (folder / "contracts.toml").write_text(toml_text(tables), encoding="utf-8")
    (folder / "cloud.toml").write_text(
        f'lake = "{folder}/lake"\ncheckpoints = "{folder}/checkpoints"\n'
        '[[clusters]]\nname = "hq"\nservice_url = "pulsar://127.0.0.1:1"\nadmin_url = "http://127.0.0.1:1"\n'
    )
    words = ["publish", str(folder / "contracts.toml"), "--config", str(folder / "cloud.toml")]
    return CliRunner().invoke(app, words)


def test_the_first_contracts_are_published_where_no_lake_is_yet(tmp_path: Path, published: Published) -> None:
    done = publish(tmp_path, legal_entity(), tariff(price()), account("acme", device()))
    first, rest = done.stdout.split("\n", 1)
    assert (done.exit_code, first) == (0, "published: 1 account, 1 legal entity, 1 tariff")
    assert "`cloud-jobs usage` takes them over" in rest
    assert len(published.keys) == 3


def test_what_contradicts_what_the_lake_has_is_named_and_nothing_is_published(
    tmp_path: Path, published: Published
) -> None:
    lake = Lake(tmp_path / "lake")
    lake.create()
    lake.append("reference", rows(legal_entity(), tariff(price()), account("acme", device())))
    done = publish(tmp_path, account("beta", device()), account("gamma", device("van-2")))
    assert (done.exit_code, published.keys) == (1, [])
    assert "device 'van-1' of tenant 'fleet' is in account 'acme' and in account 'beta'" in done.stderr
    assert "nothing was published" in done.stderr


def test_what_is_not_there_yet_is_a_warning_and_is_published(tmp_path: Path, published: Published) -> None:
    done = publish(tmp_path, account("acme", device(), tariff="later"))
    assert done.exit_code == 0, done.output
    assert "warning: not there yet: " in done.stderr
    assert "the tariff 'later', which was not published" in done.stderr
    assert len(published.keys) == 1
