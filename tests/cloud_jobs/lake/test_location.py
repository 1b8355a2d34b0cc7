"""Where a lake is: what is said in settings and environment reaches each library, and no secret is shown."""

from __future__ import annotations

import pickle
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from pyarrow.fs import FileType
from pydantic import ValidationError

from cloud_jobs.config import CloudSettings, problems
from cloud_jobs.errors import LakeError, LocationError, StoreUnavailable
from cloud_jobs.lake.location import Location
from cloud_jobs.lake.s3_access import S3Access
from cloud_jobs.lake.tables import Lake
from deploy.local import free_port
from geo.replication.admin import AdminClient
from geo.replication.errors import ReplicationError
from geo.replication.rest_types import PARTITIONS
from tests.cloud_jobs.publications import rows_of
from tests.system.lake_of_fixes import square

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDKEY", "AWS_SECRET_ACCESS_KEY": "very-secret"}
CLUSTER = {"name": "hq", "service_url": "pulsar://hq:6650", "admin_url": "http://hq:8080"}


def at(text: str = "s3://lake/of/hq", **environment: str) -> Location:
    return Location.of(text, None, KEYS | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"} | environment)


def test_a_folder_needs_nothing(tmp_path: Path) -> None:
    location = Location.of(tmp_path / "a lake", None, {})
    location.create()
    assert location.exists()
    assert (str(location), location.folder) == (str(tmp_path / "a lake"), tmp_path / "a lake")
    assert location.storage_options() is None
    (tmp_path / "a lake" / "file").write_text("x")
    assert location.files().get_file_info("file").type is FileType.File


@pytest.mark.parametrize("name", ["a%20b", "a%25", "a\\b", "[a]", "a|b", "a^b", "a\nb"])
def test_a_folder_whose_name_the_libraries_take_for_another_one_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(LocationError, match="which the libraries do not take as it stands"):
        Location.of(tmp_path / name, None, {})
    with pytest.raises(ValidationError, match="which the libraries do not take as it stands"):
        cloud(tmp_path, lake=str(tmp_path / name))


@pytest.mark.parametrize(
    "name", ["a lake", "é", "a+b=c", "~a", "a,b;c", "a'b", "a&b", "(a)", "a:b", "a@b!$", "a?b", "a#b", "a*", "{a}"]
)
def test_a_folder_with_any_other_name_holds_a_lake(name: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path / name)
    lake.create()
    for seq in range(2):
        lake.append("reference", rows_of("fence", [square(f"f{seq}")]))
    assert (lake.rows("reference").num_rows, [one.name for one in tmp_path.iterdir()]) == (2, [name])


def test_the_environment_says_how_a_store_is_reached_as_aws_own_programs_have_it() -> None:
    location = at(AWS_REGION="eu-central-1", AWS_SESSION_TOKEN="until-noon") / "records"
    assert str(location) == "s3://lake/of/hq/records"
    options = location.storage_options() or {}
    assert options["aws_conditional_put"] == "etag"
    assert options["AWS_ENDPOINT_URL"] == "http://127.0.0.1:9000"
    assert (options["AWS_ALLOW_HTTP"], options["AWS_REGION"]) == ("true", "eu-central-1")
    assert (options["AWS_SECRET_ACCESS_KEY"], options["AWS_SESSION_TOKEN"]) == ("very-secret", "until-noon")


def test_settings_come_before_the_environment() -> None:
    access = S3Access.model_validate({"endpoint": "https://store:9000", "region": "here"})
    found = access.completed(KEYS | {"AWS_ENDPOINT_URL": "http://elsewhere:1", "AWS_REGION": "there"})
    assert (found.endpoint, found.region, found.access_key_id) == ("https://store:9000", "here", "AKIDKEY")
    given = S3Access.model_validate({"region": "r", "access_key_id": "MINE", "secret_access_key": "my own"})
    mine = given.completed({**KEYS, "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"})
    assert (mine.access_key_id, mine.secret) == ("MINE", "my own")


def test_a_key_of_the_settings_is_not_sent_with_the_token_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_credentials_that_are_nowhere_are_left_to_each_librarys_own_search() -> None:
    options = Location.of("s3://lake", None, {"AWS_REGION": "eu-west-1"}).storage_options() or {}
    assert not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"} & set(options)


def test_a_file_of_credentials_is_read_and_its_faults_are_named_without_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = A\naws_secret_access_key = B%C\n[other]\nsecret = hidden\n")
    access = S3Access(endpoint="http://store:1", credentials_file=file)
    assert (access.completed({}).access_key_id, access.completed({}).secret) == ("A", "B%C")
    with pytest.raises(LocationError, match=r"credentials has no aws_access_key_id .* in \[other\]") as failure:
        access.completed({"AWS_PROFILE": "other"})
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


@pytest.mark.parametrize("text", ["", "$HOME/lake", "${HOME}/lake", " lake", "~nobody-of-this-name/lake"])
def test_what_would_become_a_folder_that_nobody_means_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(LocationError):
        at(text)
    with pytest.raises(ValidationError):
        cloud(tmp_path, lake=text)


def test_a_home_folder_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Location.of("~/lake").folder == tmp_path / "lake"
    settings = cloud(tmp_path, lake="~/lake", checkpoints="~/checkpoints").beside(Path("/srv/settings"))
    assert (settings.location.folder, settings.checkpoints) == (tmp_path / "lake", tmp_path / "checkpoints")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"endpoint": "127.0.0.1:9000"}, "endpoint"),
        ({"access_key_id": "A"}, "belong together"),
        ({"session_token": "A"}, "session_token needs"),
        ({"access_key_id": "A", "secret_access_key": "B", "credentials_file": "c"}, "not both"),
    ],
)
def test_settings_that_contradict_each_other_are_named(given: dict[str, str], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        S3Access.model_validate(given)


def test_what_the_environment_lacks_is_a_problem_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    (problem,) = problems(cloud(tmp_path, lake="s3://lake/a"))
    assert problem == "lake: object_store.region is missing: set it, or AWS_REGION"
    with pytest.raises(LocationError, match=r"AWS_ENDPOINT_URL is http\(s\)://host:port"):
        Location.of("s3://lake", None, {"AWS_ENDPOINT_URL": "store:9000"})


def test_a_store_is_not_given_for_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="object_store is for a lake at s3://bucket/prefix"):
        cloud(tmp_path, lake=tmp_path, object_store={"region": "r"})


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


@pytest.mark.parametrize(
    "text",
    [
        (
            "getFileStatus on s3a://lake/of: software.amazon.awssdk.core.exception.SdkClientException: Unable to "
            "execute HTTP request: Connect to 127.0.0.1:9000 failed: Connection refused"
        ),
        (
            "cloud_jobs.errors.StoreUnavailable: the object store at http://127.0.0.1:9000 does not answer: Generic S3 "
            "error: Error performing GET http://127.0.0.1:9000/lake/of in 30s: error sending request"
        ),
        "When reading information for key 'of' in bucket 'lake': AWS Error SLOW_DOWN during HeadObject operation",
    ],
)
def test_what_spark_says_of_a_store_that_does_not_answer_is_known(text: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"at http://127\.0\.0\.1:9000 does not answer"), at().errors_named():
        raise RuntimeError(text)


@pytest.mark.timeout(60)
def test_others_that_do_not_answer_are_not_taken_for_the_store() -> None:
    port = free_port()
    admin = AdminClient("hq", f"http://127.0.0.1:{port}", timeout_s=1, unavailable_s=0, check_name=False)
    with pytest.raises(ReplicationError, match=f"hq did not answer at http://127.0.0.1:{port}"), at().errors_named():
        admin.get("persistent/fleet/x/partitions", PARTITIONS)
    for other in (ConnectionRefusedError(111, "Connection refused"), RuntimeError("An operation timed out")):
        with pytest.raises(type(other)), at().errors_named():
            raise other


def test_an_error_of_another_kind_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Connection refused"), Location.of(tmp_path).errors_named():
        raise ValueError("Connection refused")
    with pytest.raises(LakeError), at().errors_named():
        raise LakeError("Connection refused")


def cloud(folder: Path, **given: object) -> CloudSettings:
    return CloudSettings.model_validate({"checkpoints": folder, "clusters": [CLUSTER], **given})
