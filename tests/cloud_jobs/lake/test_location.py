"""Where a lake is: what is said in settings and environment reaches each library, and no secret is shown."""

import pickle
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from pydantic import ValidationError

from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import LocationError, StoreUnavailable
from cloud_jobs.lake.location import Location, S3Access
from cloud_jobs.lake.tables import Lake
from deploy.local import free_port

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDKEY", "AWS_SECRET_ACCESS_KEY": "very-secret"}
CLUSTER = {"name": "hq", "service_url": "pulsar://hq:6650", "admin_url": "http://hq:8080"}


def at(text: str = "s3://lake/of/hq", **environment: str) -> Location:
    return Location.of(text, None, KEYS | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"} | environment)


@pytest.mark.parametrize("name", ["a%20b", "a%25", "a\\b", "[a]", "a|b", "a^b", "a\nb"])
def test_a_folder_whose_name_the_libraries_take_for_another_one_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(LocationError, match="which the libraries cannot handle"):
        Location.of(tmp_path / name, None, {})
    with pytest.raises(ValidationError, match="which the libraries cannot handle"):
        cloud(tmp_path, lake=str(tmp_path / name))


def test_a_key_of_the_settings_is_not_sent_with_the_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, str]] = []

    class Store(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(403)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("AWS_SESSION_TOKEN", "of another key")
    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        given = {"endpoint": f"http://127.0.0.1:{server.server_port}", "access_key_id": "MINE"}
        access = S3Access.model_validate(given | {"secret_access_key": "my own"})
        with pytest.raises(OSError, match="403"):
            Lake(Location.of("s3://lake", access)).open("records")
        server.shutdown()
    assert any("MINE" in headers["authorization"] for headers in sent)
    assert not any("x-amz-security-token" in headers for headers in sent)


def test_a_file_of_credentials_is_read_and_its_faults_are_named_without_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = A\naws_secret_access_key = B%C\n")
    access = S3Access(endpoint="http://store:1", credentials_file=file)
    assert (access.completed(KEYS).access_key_id, access.completed({}).secret) == ("A", "B%C")
    file.write_text("[default]\nsecret = hidden\n")
    with pytest.raises(LocationError, match=r"credentials has no aws_access_key_id .* in \[default\]") as failure:
        access.completed({})
    assert "hidden" not in str(failure.value)
    with pytest.raises(LocationError, match="absent cannot be read: No such file"):
        S3Access(region="r", credentials_file=tmp_path / "absent").completed({})


def test_no_secret_is_shown_and_an_executor_gets_it(tmp_path: Path) -> None:
    location = at()
    again: Location = pickle.loads(pickle.dumps(location))  # noqa: S301 - what was made here
    assert again == location
    assert again.access is not None
    assert again.access.secret == "very-secret"
    shown = [repr(location), str(location), repr(Lake(location)), location.access and location.access.model_dump_json()]
    assert not any("very-secret" in str(text) for text in shown)
    settings = cloud(tmp_path, lake="s3://lake", object_store={"access_key_id": "A", "secret_access_key": "hidden"})
    assert "hidden" not in repr(settings) + settings.model_dump_json()


@pytest.mark.parametrize(
    "text",
    [
        *("s3://", "s3://Lake", "s3:/lake/a", "s3://lake/a b", "s3://lake/../a", "gs://lake/a", "s3://lake//a"),
        *("dbfs:/lake", "hdfs:/lake", "hdfs://name:8020/lake", "abfss://c@a.dfs.core.windows.net/lake"),
        *("s3a://lake/a", "file:///srv/lake", "file:/srv/lake", "C:\\lake"),
    ],
)
def test_a_place_that_is_none_is_refused_with_what_would_be_one(text: str, tmp_path: Path) -> None:
    with pytest.raises(LocationError, match=r"neither a folder nor s3://BUCKET/PREFIX"):
        at(text)
    with pytest.raises(ValidationError, match=r"neither a folder nor s3://BUCKET/PREFIX"):
        cloud(tmp_path, lake=text)


@pytest.mark.timeout(60)
def test_a_store_that_does_not_answer_is_named_after_a_bounded_number_of_tries() -> None:
    lake = Lake(at(AWS_ENDPOINT_URL=f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(StoreUnavailable, match=r"the object store at http://127.0.0.1:\d+ does not answer") as failure:
        lake.open("records")
    assert failure.value.exit_status == 75
    with pytest.raises(StoreUnavailable, match="Could not connect"), lake.location.errors_named():
        raise OSError(
            "AWS Error NETWORK_CONNECTION during HeadBucket operation: curlCode: 7, Could not connect to server"
        )


def cloud(folder: Path, **given: object) -> CloudSettings:
    return CloudSettings.model_validate({"checkpoints": folder, "clusters": [CLUSTER], **given})
