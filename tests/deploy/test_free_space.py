"""A stack on a full disk ends before anything is started."""

from pathlib import Path

import pytest

from deploy.local import stack as module
from deploy.local.errors import DiskFull
from deploy.local.stack import LocalStack, require_free_space

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("total", "free", "is_full"),
    [(100, 1.1, False), (100, 1, True), (100, 0, True), (4, 0.2, False), (4, 0.1, True)],
    ids=["room", "one part in a hundred", "none", "small disk", "small disk without room"],
)
def test_a_disk_is_full_where_bookies_take_nothing(tmp_path: Path, total: float, free: float, is_full: bool) -> None:
    def usage(_: Path) -> tuple[int, int, int]:
        return int(total * GB), int((total - free) * GB), int(free * GB)

    if is_full:
        with pytest.raises(DiskFull, match=f"{tmp_path}: its disk has .* MB free of .* make room"):
            require_free_space(tmp_path, usage)
    else:
        require_free_space(tmp_path, usage)


def test_a_stack_on_a_full_disk_starts_no_server_and_gives_the_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "require_free_space", lambda folder: require_free_space(folder, lambda _: (100, 99, 1)))
    for _ in range(2):
        stack = LocalStack(tmp_path / "stack")
        with pytest.raises(DiskFull):
            stack.start()
        assert stack.servers == []
