"""What a topic is built from is what is parsed from it; what is not a topic of ours is none."""

from hypothesis import given
from hypothesis import strategies as st

from waybill.record import (
    DEVICE_PATTERN,
    VEHICLE_CANARY,
    VEHICLE_EVENT,
    VEHICLE_FILTER,
    VEHICLE_POSITION,
    VEHICLE_SIGNAL,
    DeviceChannel,
    DeviceTopic,
    device_filter,
    device_topic,
    parse_device_topic,
    shared_filter,
    vehicle_topic,
)

device_names = st.from_regex(DEVICE_PATTERN, fullmatch=True)
channels = st.sampled_from(DeviceChannel)
any_text = st.text(max_size=80) | st.lists(
    st.sampled_from(["waybill", "1", "fleet", "d1", "batch", "ack", "config", "+", "#", ""]) | st.text(max_size=3),
    max_size=7,
).map("/".join)


def test_the_topics_are_these() -> None:
    """Both ends of a connection may have different versions: a topic never changes without its version."""
    assert [device_topic("fleet", "d1", channel) for channel in DeviceChannel] == [
        "waybill/1/fleet/d1/batch",
        "waybill/1/fleet/d1/ack",
        "waybill/1/fleet/d1/config",
        "waybill/1/fleet/d1/config-result",
    ]
    assert shared_filter(DeviceChannel.BATCH, "gateway") == "$share/gateway/waybill/1/+/+/batch"
    assert device_filter(DeviceChannel.ACK, "fleet") == "waybill/1/fleet/+/ack"
    assert [VEHICLE_POSITION, VEHICLE_SIGNAL, VEHICLE_EVENT, VEHICLE_CANARY, VEHICLE_FILTER] == [
        "vehicle/position",
        "vehicle/signal",
        "vehicle/event",
        "vehicle/canary",
        "vehicle/#",
    ]
    assert vehicle_topic("diagnostics/can") == "vehicle/diagnostics/can"


@given(device_names, device_names, channels)
def test_a_topic_is_parsed_into_what_it_was_built_from(tenant: str, device: str, channel: DeviceChannel) -> None:
    assert parse_device_topic(device_topic(tenant, device, channel)) == DeviceTopic(tenant, device, channel)


@given(any_text)
def test_what_is_parsed_is_built_into_the_same_topic_and_nothing_raises(text: str) -> None:
    parsed = parse_device_topic(text)
    assert parsed is None or device_topic(*parsed) == text


@given(any_text, any_text, channels)
def test_names_that_no_topic_can_carry_build_none(tenant: str, device: str, channel: DeviceChannel) -> None:
    try:
        built = device_topic(tenant, device, channel)
    except ValueError:
        assert not (DEVICE_PATTERN.fullmatch(tenant) and DEVICE_PATTERN.fullmatch(device))
    else:
        assert parse_device_topic(built) == (tenant, device, channel)
