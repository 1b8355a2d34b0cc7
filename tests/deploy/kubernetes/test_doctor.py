"""What `waybill kubernetes doctor` says about objects as a cluster gives them."""

import base64
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from deploy.kubernetes.cli import app
from deploy.kubernetes.doctor import CHECKS, Finding, NoCluster, Seen, findings, observe
from waybill.identity.authority import KeyPair
from waybill.identity.authority_folder import AuthorityFolder
from waybill.identity.tokens import TokenKey

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
BROKER = "eu-broker.waybill.svc"


def thing(kind: str, name: str, *, labels: Mapping[str, str] | None = None, **rest: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "namespace": "waybill", "labels": labels or {}}, **rest}


def secret(name: str, **files: bytes) -> dict[str, Any]:
    data = {key.replace("__", "."): base64.b64encode(content).decode() for key, content in files.items()}
    return thing("Secret", name, data=data)


def pod(name: str, *, image: str = "localhost/waybill-gateway:0.1.0", **status: Any) -> dict[str, Any]:
    container = {"name": "gateway", "image": image}
    shown = {"phase": "Running", "containerStatuses": [{"name": "gateway", "ready": True}]} | status
    return thing(
        "Pod", name, labels={"app.kubernetes.io/version": "0.1.0"}, spec={"containers": [container]}, status=shown
    )


def node(number: int, **rest: Any) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.33.4"}}
    labels = {"topology.kubernetes.io/zone": f"zone-{number}"}
    return thing("Node", f"n{number}", labels=labels, status=status | rest)


def lease(number: int, age_s: float) -> dict[str, Any]:
    spec = {"renewTime": (NOW - timedelta(seconds=age_s)).isoformat(), "leaseDurationSeconds": 40}
    return thing("Lease", f"n{number}", spec=spec)


def stateful_set(name: str, settings: str, secrets: Sequence[dict[str, Any]]) -> dict[str, Any]:
    volumes = [{"name": "settings", "configMap": {"name": settings}}]
    volumes += [{"name": f"s{number}", "secret": one} for number, one in enumerate(secrets)]
    mounts = [{"name": f"s{number}", "mountPath": f"/etc/waybill/{number}"} for number in range(len(secrets))]
    spec = {"containers": [{"name": name, "volumeMounts": mounts}], "volumes": volumes}
    template = {"metadata": {"labels": {"part": name}}, "spec": spec}
    return thing("StatefulSet", name, spec={"replicas": 1, "template": template}, status={"replicas": 1})


def certificate(folder: Path, host: str, days: float) -> tuple[bytes, bytes]:
    """A server's certificate that ends after `days`, and its key."""
    authority = AuthorityFolder.create_root(
        folder, "root", now=NOW - timedelta(days=99), lifetime=timedelta(days=999), path_length=0
    )
    key, lifetime = KeyPair.generate(), timedelta(days=days + 50)
    issued = authority.certify(key, "pulsar@eu", servers=[host], now=NOW - timedelta(days=50), lifetime=lifetime)
    return issued.chain_pem, key.private_pem()


@pytest.fixture
def good(tmp_path: Path) -> Seen:
    """An installation that nothing is wrong with."""
    chain, key = certificate(tmp_path / "good", BROKER, 60)
    token = TokenKey(ec.generate_private_key(ec.SECP256R1()))
    shown = token.token("gateway-eu", issuer="https://keys.example", now_s=NOW.timestamp(), life_s=7 * 86_400)
    settings = (
        f'[mqtt]\nhost = "{BROKER}"\nca = "/etc/waybill/0/certificate.pem"\ntoken_file = "/etc/waybill/1/a.token"\n'
    )
    objects = [
        pod("eu-gateway-0"),
        node(1),
        node(2),
        lease(1, 5),
        lease(2, 0),
        thing("ConfigMap", "eu", data={"eu.toml": settings}),
        thing("Service", "eu-broker", spec={"selector": {"part": "broker"}}),
        stateful_set("broker", "eu", [{"secretName": "waybill-broker"}, {"secretName": "waybill-region"}]),
        secret("waybill-broker", certificate__pem=chain, key__pem=key),
        secret("waybill-region", a__token=shown.encode()),
        thing("StorageClass", "zonal", volumeBindingMode="WaitForFirstConsumer"),
        thing("PersistentVolumeClaim", "data", spec={"storageClassName": "zonal"}, status={"phase": "Bound"}),
    ]
    versions = {name: {"gitVersion": "v1.33.4"} for name in ("clientVersion", "serverVersion")}
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    seen = Seen(namespace="waybill", now=NOW, server_time=NOW, versions=versions, rules=rules)
    return with_objects(replace(seen, kinds={"Event": []}), *objects)


def with_objects(seen: Seen, *objects: dict[str, Any]) -> Seen:
    """With these too; one of the same kind and name is replaced."""
    kinds = {kind: [*found] for kind, found in seen.kinds.items()}
    for one in objects:
        others = [old for old in kinds.get(one["kind"], []) if old["metadata"]["name"] != one["metadata"]["name"]]
        kinds[one["kind"]] = [*others, one]
    return replace(seen, kinds=kinds)


def said(seen: Seen) -> list[tuple[str, str, str]]:
    found = findings(seen)
    assert all(one.remedy and one.check in CHECKS for one in found)
    return [(one.check, one.level, f"{one.subject}: {one.problem}") for one in found]


def test_nothing_is_said_about_a_good_installation(good: Seen) -> None:
    assert said(good) == []


CRASHING = {
    "name": "gateway",
    "ready": False,
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
    "lastState": {"terminated": {"exitCode": 78}},
}
UNBOUND = {"phase": "Pending"}
REFUSED: dict[str, Any] = {
    "reason": "FailedCreate",
    "message": "violates PodSecurity",
    "involvedObject": {"name": "broker"},
}
RELEASE: dict[str, Any] = {
    "type": "helm.sh/release.v1",
    "data": {"release": "eA=="},
    "labels": {"name": "eu", "version": "2", "status": "failed"},
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            node(1, nodeInfo={"kubeletVersion": "v1.34.0"}),
            ("versions", "error", "n1: its kubelet is 1.34, the API server 1.33"),
        ),
        (
            pod("eu-gateway-0", image="localhost/waybill-gateway:0.2.0"),
            ("versions", "warning", "its chart was made for 0.1.0"),
        ),
        (lease(1, -30), ("clock", "error", "n1: its clock is at least 30 s ahead")),
        (lease(1, 100), ("clock", "error", "n1: it is ready, and its heartbeat says 100 s ago: its clock is behind")),
        (
            node(1, conditions=[{"type": "Ready", "status": "Unknown"}]),
            ("nodes", "error", "n1: not ready: no heartbeat"),
        ),
        (
            thing("PersistentVolumeClaim", "data", spec={"storageClassName": "fast"}, status=UNBOUND),
            ("storage", "error", "claim data: there is no storage class fast"),
        ),
        (
            thing("PersistentVolumeClaim", "data", spec={}, status=UNBOUND),
            ("storage", "error", "claim data: it names no storage class, and none is default"),
        ),
        (
            thing("StorageClass", "zonal", volumeBindingMode="Immediate"),
            ("storage", "warning", "class zonal: it chooses a zone before the pod has one"),
        ),
        (
            stateful_set("broker", "eu", [{"secretName": "lost"}, {"secretName": "waybill-region"}]),
            ("secrets", "error", "statefulset/broker: Secret lost does not exist"),
        ),
        (
            stateful_set("broker", "eu", [{"secretName": "waybill-broker"}, {"secretName": "lost", "optional": True}]),
            ("secrets", "error", "statefulset/broker: its settings name /etc/waybill/1/a.token"),
        ),
        (secret("waybill-broker", key__pem=b"x"), ("secrets", "error", "/etc/waybill/0/certificate.pem")),
        (
            pod("eu-gateway-0", containerStatuses=[CRASHING]),
            ("pods", "error", "eu-gateway-0/gateway: CrashLoopBackOff, ended with 78: operators.toml: cannot be read"),
        ),
        (
            pod("eu-gateway-0", conditions=[{"type": "PodScheduled", "status": "False", "message": "no room"}]),
            ("pods", "error", "eu-gateway-0: no room"),
        ),
        (
            thing("Secret", "sh.helm.release.v1.eu.v2", **RELEASE),
            ("releases", "error", "release eu: its revision 2 is failed"),
        ),
    ],
)
def test_one_thing_that_is_wrong_is_named(good: Seen, changed: dict[str, Any], expected: tuple[str, str, str]) -> None:
    seen = replace(good, last_lines={"eu-gateway-0/gateway": "operators.toml: cannot be read"})
    found = said(with_objects(seen, changed))
    check, level, words = expected
    assert [one for one in found if one[:2] == (check, level) and words in one[2]], found


def test_pods_that_admission_refuses_are_named_by_their_workload(good: Seen) -> None:
    broker = stateful_set("broker", "eu", [{"secretName": "waybill-broker"}, {"secretName": "waybill-region"}])
    seen = with_objects(good, broker | {"status": {"replicas": 0}}, thing("Event", "e", **REFUSED))
    assert said(seen) == [("pods", "error", "broker: violates PodSecurity")]


def test_certificates_have_the_names_of_services_their_own_keys_and_time_left(good: Seen, tmp_path: Path) -> None:
    chain, _ = certificate(tmp_path / "other", "broker.example", -1)
    _, key = certificate(tmp_path / "stranger", BROKER, 5)
    found = said(with_objects(good, secret("waybill-broker", certificate__pem=chain, key__pem=key)))
    where = "Secret waybill-broker, certificate.pem: "
    assert found == [
        ("tls", "error", f"{where}key.pem is the key of another certificate"),
        ("tls", "error", f"{where}the certificate ended at 2026-11-30 12:00 UTC"),
        ("names", "error", f"{BROKER}: the certificate in Secret waybill-broker is for broker.example"),
    ]
    later = replace(good, server_time=NOW + timedelta(days=8), now=NOW + timedelta(days=8))
    assert ("tls", "error", "Secret waybill-region, a.token: the token ended at 2026-12-08 12:00 UTC") in said(later)


def test_what_could_not_be_asked_is_unknown_and_never_good(good: Seen) -> None:
    kinds = {kind: found for kind, found in good.kinds.items() if kind not in {"Secret", "Node", "StorageClass"}}
    seen = replace(good, kinds=kinds, refused={"Secrets": "forbidden"}, rules=[], server_time=None)
    assert {(check, level) for check, level, _ in said(seen)} == {("access", "unknown"), ("rights", "warning")}


FAKE = """#!{python}
import json, sys
words = sys.argv[1:]
answers = json.load(open({file!r}))
if "--raw" in words:
    sys.stderr.write("  Date: Tue, 01 Dec 2026 12:00:00 GMT\\n")
elif "logs" in words:
    print("line of " + words[words.index("logs") + 1])
elif "create" in words:
    json.load(sys.stdin)
    print(json.dumps({{"status": {{"resourceRules": []}}}}))
elif "get" in words:
    asked = words[words.index("get") + 1]
    if asked == "secrets":
        sys.exit("Error: secrets is forbidden")
    print(json.dumps({{"items": [one for one in answers if one["kind"].lower() + "s" in asked.split(",")]}}))
else:
    print("{{}}")
"""


@pytest.fixture
def kubectl(tmp_path: Path, good: Seen) -> str:
    """A program that answers with the good installation, a pod that waits, and no Secrets."""
    waiting = pod("eu-gateway-1", containerStatuses=[CRASHING])
    file, program = tmp_path / "objects.json", tmp_path / "kubectl"
    file.write_text(json.dumps([*(one for found in good.kinds.values() for one in found), waiting]), encoding="utf-8")
    program.write_text(FAKE.format(python=sys.executable, file=str(file)), encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def test_a_cluster_is_asked_by_kubectl(kubectl: str) -> None:
    seen = observe([kubectl], None)
    assert (seen.namespace, seen.server_time) == ("default", NOW)
    assert seen.last_lines == {"eu-gateway-1/gateway": "line of eu-gateway-1"}
    assert seen.refused == {"Secrets": "Error: secrets is forbidden"}
    assert {one["metadata"]["name"] for one in seen.of("Node")} == {"n1", "n2"}
    assert "Secret" not in seen.kinds


def test_the_command_prints_a_table_or_json_and_its_status_says_how_bad_it_is(kubectl: str, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["doctor", "--kubectl", kubectl, "--json", "-n", "waybill"])
    assert shown.exit_code == 1
    given = [Finding(**one) for one in json.loads(shown.stdout)["findings"]]
    assert {"access", "pods"} <= {one.check for one in given}
    table = CliRunner().invoke(app, ["doctor", "--kubectl", kubectl, "-n", "waybill"])
    assert "CrashLoopBackOff" in table.stdout
    assert "good are" in table.stdout
    none = CliRunner().invoke(app, ["doctor", "--kubectl", str(tmp_path / "none")])
    assert none.exit_code == os.EX_UNAVAILABLE
    with pytest.raises(NoCluster, match="none"):
        observe([str(tmp_path / "none")], None)
