"""What regions said of a change: in force, refused, nothing."""

from datetime import timedelta

from tests.identity.operators import operator, trusting
from tests.identity.registry_strategies import MOMENT
from waybill.identity.confirmations import (
    RegionAnswers,
    RegionConfirmation,
    confirming_regions,
    decode_confirmation,
    encode_confirmation,
)


def said(region: str, confirmed: dict[str, str], refused: dict[str, str]) -> RegionConfirmation:
    return RegionConfirmation(region, confirmed, 1.0, refused)


def test_each_region_has_a_change_in_force_or_refuses_it_or_is_silent() -> None:
    answers = RegionAnswers()
    answers.take(said("eu", {"acme/a": "1", "acme/b": "2"}, {}))
    answers.take(said("us", {"acme/a": "1"}, {"2": "unknown-key"}))
    found = answers.verdicts(["1", "2"], ["eu", "us", "jp"])
    assert (found.confirmed, found.refused, found.silent) == (("eu",), {"us": "unknown-key"}, ("jp",))
    assert found.text == "us refuses it: unknown-key; jp has not confirmed it"


def test_what_a_region_refused_and_has_in_force_now_is_in_force() -> None:
    answers = RegionAnswers()
    answers.take(said("us", {}, {"2": "unknown-key"}))
    answers.take(said("us", {"acme/b": "2"}, {}))
    assert answers.verdicts(["2"], ["us"]) == (("us",), {}, ())


def test_a_refusal_goes_through_the_topic_and_one_that_is_no_text_is_none() -> None:
    body = encode_confirmation("us", [("acme/a", "1")], 1.0, [("2", "altered")])
    assert decode_confirmation(body) == said("us", {"acme/a": "1"}, {"2": "altered"})
    assert decode_confirmation(body.replace(b'"altered"', b"[1]")) is None


def test_each_region_whose_daemons_key_is_trusted_and_valid_is_to_confirm() -> None:
    keys = trusting(
        operator("access@eu", kinds=("enrolment",)),
        operator("access@us", kinds=("enrolment",), valid_until=MOMENT),
        operator("anna"),
        operator("bea", kinds=("enrolment",)),
    )
    assert confirming_regions(keys, MOMENT) == {"eu"}
    assert confirming_regions(keys, MOMENT - timedelta(days=1)) == {"eu", "us"}
