"""A feed that nobody uses any more holds nothing: a native reader keeps what it was sent until it is gone itself."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloud_jobs.pulsar_source.reading.feeds import SingleMessageHandover, _ReaderFeed


class Native:
    """Stands for the client's reader."""

    def is_connected(self) -> bool:
        return True


@pytest.mark.parametrize("one_by_one", [None, SingleMessageHandover()])
def test_a_reader_goes_with_its_feed_without_waiting_for_the_collector(
    one_by_one: SingleMessageHandover | None,
) -> None:
    gc.disable()
    try:
        native = Native()
        gone = weakref.ref(native)
        feed = _ReaderFeed(SimpleNamespace(_reader=native), cast("Any", None), 10, one_by_one)
        assert feed.connected()
        del native, feed
        assert gone() is None
    finally:
        gc.enable()
