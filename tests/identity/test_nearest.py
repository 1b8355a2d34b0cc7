"""Which name may be meant."""

import pytest

from waybill.identity.names import did_you_mean, nearest


@pytest.mark.parametrize("name", ["eu", "EU", "ue", "euu"])
def test_a_slip_of_the_pen_or_of_the_shift_key_is_seen(name: str) -> None:
    assert nearest(name, ["us", "eu"]) == "eu"


@pytest.mark.parametrize("name", ["mars", "", "kaze", "e" * 1000])
def test_what_is_like_none_of_them_means_none_of_them(name: str) -> None:
    assert (nearest(name, ["us", "eu", "fleet"]), did_you_mean(name, ["us", "eu", "fleet"])) == ("", "")


def test_the_same_case_is_nearer_than_the_same_letters() -> None:
    assert nearest("NO", ["on", "no"]) == "no"
