import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloud_jobs.pulsar_source import OptionError
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.source import PulsarBatchReader, PulsarStreamReader
from waybill.pulsar.pulsar_client import PulsarToken

ONE = {"clusters": "hq=pulsar://h:6650|http://h:8080", "topics": "t"}
TWO = ONE | {"clusters": "hq=pulsar://h:6650|http://h:8080, dr=pulsar://d:6650|http://d:8080/"}
DOCUMENT = Path(__file__).parents[3] / "docs" / "pulsar-source.md"


def test_options_are_taken_in_any_case_as_spark_gives_them() -> None:
    options = PulsarOptions.parse({key.lower(): value for key, value in ONE.items()} | {"maxmessagespertrigger": "7"})
    assert options.max_messages_per_trigger == 7


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("topic", "topics"), ("maxMessagePerTriger", "maxMessagesPerTrigger"), ("subscriptionName", "subscription")],
)
def test_an_unknown_option_is_named_with_the_nearest_right_one(wrong: str, right: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option '{wrong}': did you mean {right}"):
        PulsarOptions.parse(ONE | {wrong: "x"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ONE | {"topicsPattern": "t/n/(", "topics": ""}, "is not a regular expression"),
        (ONE | {"clusters": "hq=pulsar://h:6650|http://h:port"}, "is not a cluster"),
        (ONE | {"topics": "t/n/.."}, "no address"),
        ({"topics": "t"}, "either clusters, or both serviceUrl and adminUrl"),
        (ONE | {"serviceUrl": "pulsar://h:1", "adminUrl": "http://h:1"}, "either clusters"),
        ({"clusters": ONE["clusters"]}, "either topics or topicsPattern"),
        (ONE | {"topicsPattern": "t/n/.*"}, "either topics or topicsPattern"),
        (ONE | {"clusters": "hq"}, "is not a cluster"),
        (TWO | {"failoverFile": "s3a://bucket/failover.json"}, "is an address"),
        (ONE | {"clusters": f"{ONE['clusters']},{ONE['clusters']}", "failoverFile": "f"}, "named twice"),
        (ONE | {"token": "a", "tokenFile": "b"}, "not both"),
        (ONE | {"tlsKey": "k"}, "belong together"),
        (ONE | {"maxMessagesPerTrigger": "0"}, "greater than or equal to 1"),
        *(
            (ONE | {"startingPosition": wrong}, "startingPosition: takes")
            for wrong in ("sometime", "2026", "1767603422")
        ),
        (ONE | {"endingPosition": "1767603422.5"}, "endingPosition: takes"),
        (ONE | {"columns": "value,colour"}, "takes some of value"),
        (ONE | {"topics": "non-persistent://a/b/c"}, "is not a topic"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_the_reason(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PulsarOptions.parse(options)


def test_clusters_keep_their_order() -> None:
    options = PulsarOptions.parse(TWO | {"failoverFile": "f"})
    assert [(cluster.name, cluster.admin_url) for cluster in options.all_clusters()] == [
        ("hq", "http://h:8080"),
        ("dr", "http://d:8080"),
    ]
    with pytest.raises(OptionError, match="only hq, dr"):
        options.cluster_named("moon")


def test_a_call_takes_no_longer_than_a_cluster_may_be_silent_when_there_is_another() -> None:
    times = {"operationTimeoutSeconds": "20", "clusterLostAfterSeconds": "3.5"}
    assert PulsarOptions.parse(ONE | times).call_timeout_s() == 20
    assert PulsarOptions.parse(TWO | times | {"failoverFile": "f"}).call_timeout_s() == 4


def test_a_time_without_a_zone_is_utc() -> None:
    options = PulsarOptions.parse(ONE | {"startingPosition": "2026-01-02T03:04:05"})
    assert options.starting_position == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "asked", "others"),
    [
        ({"topics": "t,a/b/c"}, ["public/default/t", "public/default/t-partition-3", "a/b/c"], ["public/default/u"]),
        ({"topics": "t-partition-3"}, ["public/default/t-partition-3"], ["public/default/t-partition-4"]),
        ({"topicsPattern": "a/b/.*"}, ["a/b/e\n", "a/b/ ", "a/b/d-partition-0"], ["a/c/c"]),
        ({"topicsPattern": "a/b/d-partition-0"}, ["a/b/d-partition-0"], ["a/b/d", "a/b/d-partition-1"]),
        ({"topicsPattern": "a/b/c.*"}, ["a/b/c", "a/b/cd-partition-0"], ["a/b/dc", "a/c/c", "b/b/c"]),
    ],
)
def test_a_topic_of_a_checkpoint_is_asked_for_or_was_taken_out(
    options: dict[str, str], asked: list[str], others: list[str]
) -> None:
    parsed = PulsarOptions.parse({"clusters": ONE["clusters"]} | options)
    assert [name for name in asked + others if parsed.asks_for(f"persistent://{name}")] == asked


@pytest.mark.parametrize("text", ["20991231", "2099-12-31", "2099-12-31T00:00:00Z", "2099-12-31T02:00:00+02:00"])
def test_a_time_is_iso_8601_in_either_format(text: str) -> None:
    assert PulsarOptions.parse(ONE | {"startingPosition": text}).starting_position == datetime(2099, 12, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ONE, "needs the option subscription"),
        (TWO | {"subscription": "s"}, "needs failoverFile"),
        (ONE | {"subscription": "s", "endingPosition": "2026-01-02"}, "a stream has no end"),
    ],
)
def test_a_stream_needs_what_a_batch_does_not(options: dict[str, str], message: str) -> None:
    PulsarBatchReader(PulsarOptions.parse(options))
    with pytest.raises(OptionError, match=message):
        PulsarStreamReader(PulsarOptions.parse(options))


def test_a_token_is_kept_for_the_workers_and_out_of_every_text() -> None:
    options = PulsarOptions.parse(ONE | {"token": "s3cret"})
    assert "s3cret" not in repr(options) + str(options)
    assert PulsarToken(pickle.loads(pickle.dumps(options)))() == "s3cret"  # noqa: S301  # as Spark does


NUMBERS = [field.alias for field in PulsarOptions.model_fields.values() if "int" in str(field.annotation)] + [
    field.alias for field in PulsarOptions.model_fields.values() if field.annotation is float
]


@pytest.mark.parametrize("option", NUMBERS)
@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e300", "-1", str(2**63), "10000000000000"])
def test_a_number_without_bound_is_refused(option: str, number: str) -> None:
    with pytest.raises(OptionError, match=option):
        PulsarOptions.parse(ONE | {option: number})


def test_every_option_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [field.alias for field in PulsarOptions.model_fields.values() if f"`{field.alias}`" not in text]
    assert not missing
