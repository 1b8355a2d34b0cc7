"""Opens new volumes to pods that are not root: a hostPath ignores `fsGroup` and belongs to root."""

from __future__ import annotations

import time
from pathlib import Path

from deploy.kubernetes.cluster.control_plane import VOLUMES

_LOOK_S = 0.3
_OPEN = 0o777


def open_new(folder: Path) -> None:
    """Let everybody write into each volume in `folder`, not what is in it."""
    for volume in folder.glob("*"):
        if volume.is_dir() and volume.stat().st_mode & _OPEN != _OPEN:
            volume.chmod(_OPEN)


if __name__ == "__main__":
    while True:
        open_new(Path(VOLUMES))
        time.sleep(_LOOK_S)
