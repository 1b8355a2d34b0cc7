"""What is no file is refused by its name, wherever a file is read, and nobody waits for it."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cloud_jobs.reference.files import read_reference
from edge_agent.push.push_cli import _read as read_settings_to_push
from simulator.__main__ import read_brokers
from tests.examples import examples
from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.tls import certificate_faults
from waybill.identity.authority_folder import AuthorityFolder
from waybill.identity.device_files import read_device_file
from waybill.identity.operator_settings import read_operator_settings
from waybill.identity.sealing import read_public_key
from waybill.identity.signatures import read_operator_key
from waybill.identity.tokens import read_key
from waybill.mqtt.broker_settings import read_password
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import NotAFile, PathElsewhere, Settings, local_path, open_file, read_file


def make(kind: str, path: Path) -> Path:
    if kind == "device":
        return Path("/dev/zero")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a pipe":
        os.mkfifo(path.with_name("other"))
        path.symlink_to("other")
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    return path


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "socket", "device"])
def test_what_is_no_file_is_refused_by_its_name(tmp_path: Path, kind: str) -> None:
    path = make(kind, tmp_path / "input")
    for read in (open_file, read_file, lambda one: read_bounded(one, 1000)):
        with pytest.raises(NotAFile, match=f"it is a .*, and no file: '{path}'") as refused:
            read(path)
        assert refused.value.filename == str(path)


def test_a_file_is_read_through_a_link_and_a_folder_is_one(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"content")
    link.symlink_to(file)
    assert (read_file(link), read_bounded(link, 7)) == (b"content", b"content")
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none")


READERS: dict[str, Callable[[Path], object]] = {
    "settings": read_operator_settings,
    "a file of devices": read_device_file,
    "a file of contracts": lambda path: read_reference([path]),
    "a key of an operator": read_operator_key,
    "a key for sealed batches": read_public_key,
    "a key of an authority": lambda path: AuthorityFolder.open(path.parent, path),
    "a key of tokens": read_key,
    "a token": lambda path: [why for _, why in PulsarAccess(token_file=path).file_faults()],
    "a certificate": lambda path: [why for _, why in certificate_faults(path, None, None)],
    "a password": read_password,
    "settings to push": read_settings_to_push,
    "brokers": read_brokers,
}


@pytest.mark.parametrize("name", [*READERS])
def test_whatever_is_read_a_pipe_that_nobody_writes_to_is_refused_and_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "input.toml"
    os.mkfifo(path)
    if name == "a key of an authority":
        # its certificate is looked at before its key
        (tmp_path / "certificate.pem").symlink_to(path)
        (tmp_path / "authority.pem").symlink_to(path)
    try:
        said = str(READERS[name](path))
    except Exception as refused:  # noqa: BLE001 - each reader has its own error
        said = str(refused)
    assert "it is a named pipe, and no file" in said
    assert "input.toml" in said or name == "a key of an authority", said


REFUSED = {
    "dbfs:/lake": "begins with dbfs:",
    "hdfs://name/lake": "begins with hdfs:",
    "abfss://c@a.dfs.core.windows.net/lake": "begins with abfss:",
    "file:///srv/lake": "begins with file:",
    "s3://bucket/lake": "begins with s3:",
    "C:\\lake": "begins with C:",
    "C:/lake": "begins with C:",
    "$HOME/lake": r"has \$HOME",
    "${HOME}/lake": r"has \$\{HOME\}",
    "/srv/${NAME": r"has \$\{NAME",
    "/srv/$USER/lake": r"has \$USER",
    "~nobody-of-this-name/lake": "no user has the home folder ~nobody-of-this-name",
    " lake": "begins or ends with a blank",
    "lake\n": "begins or ends with a blank",
    "a\0b": "is not a path",
}


class Daemon(Settings):
    folder: Path
    state: Path | None = None


@pytest.mark.parametrize("text", REFUSED)
def test_what_only_looks_like_a_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[text]):
        local_path(text)
    with pytest.raises(ValidationError):
        Daemon.model_validate({"folder": "x", "state": text})


def test_a_home_folder_is_expanded_in_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of-me")
    made = Daemon.model_validate({"folder": "~", "state": "~/state"})
    assert (made.folder, made.state) == (Path("/home/of-me"), Path("/home/of-me/state"))


class OfExecutors(Settings):
    python: PathElsewhere = ""


@pytest.mark.parametrize("text", ["~/bin/python", "~anna/bin/python", *REFUSED])
def test_a_path_of_other_machines_has_no_home_folder(text: str) -> None:
    assert OfExecutors(python="./python/bin/python").python == "./python/bin/python"
    with pytest.raises(ValidationError):
        OfExecutors(python=text)


NAMES = st.text(st.characters(categories=["L", "N"], include_characters="._-$ ~"), min_size=1).filter(
    lambda name: name == name.strip() and not name.startswith(("~", "$"))
)


@given(names=st.lists(NAMES, min_size=1), absolute=st.booleans())
@settings(max_examples=examples(200))
def test_any_other_path_stays_as_it_is(names: list[str], absolute: bool) -> None:
    text = "/" * absolute + "/".join(names)
    assert local_path(text) == text
