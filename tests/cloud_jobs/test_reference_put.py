"""Publishing judges files as checking does, beside what the lake of the settings has, and publishes all or nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference import files as reference_publisher
from cloud_jobs.reference.commands import app
from simulator.fleet import toml_text
from tests.cloud_jobs.billing.contracts.makers import account, device, kind_of, legal_entity, price, rows, tariff
from tests.cloud_jobs.publications import row_of
from tests.identity.operators import operator, operators_file
from tests.system.lake_of_fixes import square
from waybill.identity.signatures import NewOperator
from waybill.pulsar import cluster_clock
from waybill.pulsar.cluster_clock import ClockDiffers


class Published:
    """Takes the place of the clusters: what was sent to them."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.signing: Any = None
        self.clocks: Any = None

    def check_clock(self, urls: Any, _: Any) -> None:
        self.clocks = urls

    def publish(self, _: Any, versions: Any, *__: Any, signing: Any = None) -> int:
        self.signing = signing
        self.keys += [version.key for version in versions]
        return len(self.keys)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Published:
    made = Published()
    monkeypatch.setattr(reference_publisher, "publish", made.publish)
    monkeypatch.setattr(reference_publisher, "check_clock", made.check_clock)
    return made


ANNA = operator("anna")
ACME = operator("acme clerk", tenants=("fleet",), kinds=("account",), accounts=("acme", "acme-*"))
OLD = operator("old", valid_until=datetime(2026, 1, 1, tzinfo=UTC))
TRUSTED = 'operators = "operators.toml"'


def put(folder: Path, *bodies: dict[str, Any], by: NewOperator = ANNA, key: bool = True, trusted: str = "") -> Result:
    tables: dict[str, list[dict[str, Any]]] = {}
    for body in bodies:
        tables.setdefault(kind_of(body), []).append(body)
    (folder / "contracts.toml").write_text(toml_text(tables), encoding="utf-8")
    if not (folder / "operators.toml").exists():
        operators_file(folder / "operators.toml", ANNA, ACME, OLD)
    (folder / "cloud.toml").write_text(
        f'lake = "{folder}/lake"\ncheckpoints = "{folder}/checkpoints"\n'
        '[[clusters]]\nname = "hq"\nservice_url = "pulsar://127.0.0.1:1"\nadmin_url = "http://127.0.0.1:1"\n'
        f"[reference]\n{trusted or TRUSTED}\n"
    )
    (folder / "mine.key").write_bytes(by.key.private_pem())
    words = ["put", str(folder / "contracts.toml"), "--config", str(folder / "cloud.toml"), "--reason", "as agreed"]
    return CliRunner().invoke(app, [*words, *(["--key", str(folder / "mine.key")] if key else [])])


def test_the_first_contracts_are_published_where_no_lake_is_yet(tmp_path: Path, published: Published) -> None:
    done = put(tmp_path, legal_entity(), tariff(price()), account("acme", device()))
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
    done = put(tmp_path, account("beta", device()), account("gamma", device("van-2")))
    assert (done.exit_code, published.keys) == (1, [])
    assert "device 'van-1' of tenant 'fleet' is in account 'acme' and in account 'beta'" in done.stderr
    assert "nothing was published" in done.stderr


def put_fences(folder: Path, *features: dict[str, Any]) -> Result:
    put(folder)  # the settings and the key
    (folder / "fences.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    words = ["--config", str(folder / "cloud.toml"), "--reason", "as agreed", "--key", str(folder / "mine.key")]
    return CliRunner().invoke(app, ["put", str(folder / "fences.geojson"), *words])


def lake_of_fences(folder: Path, *features: dict[str, Any]) -> None:
    lake = Lake(folder / "lake")
    lake.create()
    lake.append(
        "reference", [row_of("fence", one["properties"]["id"], one, number) for number, one in enumerate(features)]
    )


@pytest.mark.parametrize(("there", "name"), [("12", "12.0"), ("K\u00f6ln", "Ko\u0308ln")])
def test_a_fence_whose_id_reads_as_one_that_is_published_is_refused_until_that_one_has_ended(
    tmp_path: Path, published: Published, there: str, name: str
) -> None:
    lake_of_fences(tmp_path, square(there))
    done = put_fences(tmp_path, square(name))
    assert (done.exit_code, published.keys) == (1, [])
    assert f"the id of this fence is written {name!a}, and {there!a} reads the same (published)" in done.stderr
    assert put_fences(tmp_path, square(there)).exit_code == 0
    other = tmp_path / "ended"
    other.mkdir()
    ended = square(there)
    ended["properties"]["effective_until"] = "2026-02-01T00:00:00Z"
    lake_of_fences(other, ended)
    assert put_fences(other, square(name)).exit_code == 0


def test_it_is_signed_by_the_key_that_is_named_for_the_reason_that_is_given(
    tmp_path: Path, published: Published
) -> None:
    assert put(tmp_path, tariff(price()), by=ANNA).exit_code == 0
    assert (published.signing.key.key_id, published.signing.reason) == (ANNA.key.key_id, "as agreed")


@pytest.mark.parametrize("by", [ACME, OLD, operator("nobody")], ids=["no-right", "not-valid-then", "unknown-key"])
def test_what_the_centre_would_refuse_is_named_with_its_place_and_not_published(
    tmp_path: Path, published: Published, by: NewOperator, request: pytest.FixtureRequest
) -> None:
    done = put(tmp_path, tariff(price()), by=by)
    assert (done.exit_code, published.keys) == (1, [])
    assert f"contracts.toml:1: tariff 'standard': {request.node.callspec.id}: " in done.stderr


def test_a_tenants_own_key_publishes_its_own_accounts_alone(tmp_path: Path, published: Published) -> None:
    assert put(tmp_path, account("acme", device()), by=ACME).exit_code == 0
    for other in (
        account("beta", device()),
        account("acme-1", device() | {"tenant": "beta"}),
        account("acme-1", device(), parent="beta", payer=None),
    ):
        published.keys.clear()
        done = put(tmp_path, other, by=ACME)
        assert (done.exit_code, published.keys) == (1, []), done.output
        assert "no-right: the key of acme clerk may not speak for" in done.stderr


def test_a_machine_whose_clock_is_wrong_publishes_nothing(
    tmp_path: Path, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differs(url: str, _: Any) -> None:
        raise ClockDiffers(url, 40 * 86_400)

    monkeypatch.undo()
    monkeypatch.setattr(reference_publisher, "publish", published.publish)
    monkeypatch.setattr(cluster_clock, "check_clock", differs)
    done = put(tmp_path, legal_entity())
    assert (done.exit_code, published.keys) == (1, [])
    assert "3456000 s ahead of that of http://127.0.0.1:1" in done.stderr
    monkeypatch.undo()
    monkeypatch.setattr(reference_publisher, "publish", published.publish)
    done = put(tmp_path, legal_entity())
    assert (done.exit_code, published.keys) == (1, [])
    assert "is not known" in done.stderr
