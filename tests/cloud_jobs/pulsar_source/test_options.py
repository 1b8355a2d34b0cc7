import pickle
from pathlib import Path

import pytest

from cloud_jobs.pulsar_source import OptionError
from cloud_jobs.pulsar_source.options import PulsarOptions
from waybill.pulsar.pulsar_client import PulsarToken

ONE = {"clusters": "hq=pulsar://h:6650|http://h:8080", "topics": "t"}
TWO = ONE | {"clusters": "hq=pulsar://h:6650|http://h:8080, dr=pulsar://d:6650|http://d:8080/"}
DOCUMENT = Path(__file__).parents[3] / "docs" / "pulsar-source.md"


def test_options_are_taken_in_any_case_as_spark_gives_them() -> None:
    options = PulsarOptions.parse({key.lower(): value for key, value in ONE.items()} | {"maxmessagespertrigger": "7"})
    assert options.max_messages_per_trigger == 7


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


def test_a_token_is_kept_for_the_workers_and_out_of_every_text() -> None:
    options = PulsarOptions.parse(ONE | {"token": "s3cret"})
    assert "s3cret" not in repr(options) + str(options)
    assert PulsarToken(pickle.loads(pickle.dumps(options)))() == "s3cret"  # noqa: S301  # as Spark does


def test_every_option_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [field.alias for field in PulsarOptions.model_fields.values() if f"`{field.alias}`" not in text]
    assert not missing
