"""What the cluster's parts are made from: certificates, settings of nodes, recorded processes, messages."""

import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store
from typer.testing import CliRunner

from deploy.kubernetes.cluster import __main__ as command
from deploy.kubernetes.cluster.certificates import OUTSIDE, Authority
from deploy.kubernetes.cluster.control_plane import objects
from deploy.kubernetes.cluster.layout import Layout
from deploy.kubernetes.cluster.nodes import containerd_settings, kubelet_settings, pod_network, start_script
from deploy.kubernetes.cluster.processes import ClusterError, Processes, run, wait_for
from deploy.kubernetes.cluster.volumes import open_new


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(tmp_path / "kubernetes")
    found.logs.mkdir(parents=True)
    return found


def test_the_api_servers_certificate_is_valid_for_the_names_of_the_cluster(layout: Layout) -> None:
    authority = Authority.in_folder(layout.keys)
    authority.issue("apiserver", "kube-apiserver", serves=True)
    leaf = x509.load_pem_x509_certificate((layout.keys / "apiserver.crt").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(one) for one in names.get_values_for_type(x509.IPAddress)} == {"10.90.0.1", "127.0.0.1", "10.96.0.1"}
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)
    leaf.verify_directly_issued_by(authority.certificate)
    assert (layout.keys / "apiserver.key").stat().st_mode & 0o77 == 0
    assert PolicyBuilder().store(Store([authority.certificate])) is not None


def test_an_access_file_names_its_holder_and_the_servers_address(layout: Layout) -> None:
    authority = Authority.in_folder(layout.keys)
    content = json.loads(authority.access_file("admin", "admin", "system:masters", OUTSIDE).read_text(encoding="utf-8"))
    assert content["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    held = x509.load_pem_x509_certificate(Path(content["users"][0]["user"]["client-certificate"]).read_bytes())
    assert held.subject.rfc4514_string() == "CN=admin,O=system:masters"


def test_two_nodes_share_no_address_folder_zone_or_socket(layout: Layout) -> None:
    one, two = layout.node(1), layout.node(2)
    for part in ("name", "zone", "namespace", "address", "pods", "folder", "socket"):
        assert getattr(one, part) != getattr(two, part)
    assert kubelet_settings(one)["cgroupRoot"] == f"/{one.namespace}"
    assert pod_network(two)["plugins"][0]["ipam"]["ranges"] == [[{"subnet": two.pods}]]


def test_a_node_keeps_its_images_and_loads_those_that_are_named(layout: Layout) -> None:
    node = layout.node(1)
    settings = tomllib.loads(containerd_settings(node))
    assert settings["grpc"]["address"] == str(node.socket)
    assert kubelet_settings(node)["imageGCHighThresholdPercent"] == 100
    script = start_script(node, [Path("/images/a b.tar")])
    assert "'/images/a b.tar'" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=10)


def test_kube_proxy_and_the_provisioner_of_volumes_get_their_rights() -> None:
    found = {(one["kind"], one["metadata"]["name"]) for one in objects()}
    assert found == {
        ("StorageClass", "standard"),
        ("ClusterRoleBinding", "kube-proxy"),
        ("ClusterRoleBinding", "volumes"),
    }


def test_processes_are_ended_by_what_was_recorded(layout: Layout) -> None:
    processes = Processes(layout, 0)
    processes.start("sleeper", [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"])
    again = Processes.recorded(layout)
    assert again.alive("sleeper") is not None
    again.end("sleeper")
    assert processes.alive("sleeper") is None


def test_a_process_that_has_our_number_by_chance_is_left_alone(layout: Layout) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        processes = Processes(layout, 0, {"etcd": (stranger.pid, time.time() - 3600)})
        processes.end("etcd")
        assert stranger.poll() is None
        stranger.kill()


def test_a_failed_command_says_what_it_printed() -> None:
    with pytest.raises(ClusterError, match="no such thing"):
        run("bash", "-c", "echo no such thing >&2; exit 3")
    with pytest.raises(ClusterError, match="make kubernetes-tools"):
        run("a-program-that-nobody-has")
    with pytest.raises(ClusterError, match="the door did not answer within 0 s"):
        wait_for("the door", 0, "false")


def test_new_volumes_are_open_and_their_content_is_not(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o700)
    (volume / "key").touch(mode=0o600)
    open_new(tmp_path)
    assert volume.stat().st_mode & 0o777 == 0o777
    assert (volume / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "message"),
    [(["down"], "no cluster runs"), (["status"], "no cluster runs"), (["up"], "make kubernetes-tools")],
)
def test_a_cluster_that_cannot_be_started_or_ended_says_why(
    words: list[str], message: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Layout, "of_user", lambda: layout)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(ClusterError, match=message):
        CliRunner().invoke(command.app, words, catch_exceptions=False, standalone_mode=False)
