"""The Containerfile of an image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from deploy.images.plan import JAVA_MODULES, Image

_FOLDER = Path(__file__).parent


def containerfile(image: Image, labels: Mapping[str, str]) -> str:
    """The text: the form beside this module, with Java where the image has it, its labels and its command."""
    text = (_FOLDER / ("Containerfile" if image.extra else "Containerfile.pulsar")).read_text(encoding="utf-8")
    if image.java:
        java = (_FOLDER / "Containerfile.java").read_text(encoding="utf-8")
        text = java.replace("MODULES", ",".join(JAVA_MODULES)) + text
        text += "COPY --from=java /java /opt/java\nENV JAVA_HOME=/opt/java\n"
    lines = [f'LABEL {key}="{value}"' for key, value in labels.items()]
    program = f"/opt/waybill/bin/{image.commands[0]}" if image.commands else "/opt/java/bin/java"
    entry = f'ENTRYPOINT ["{program}"]'
    return "\n".join([text.rstrip(), *lines, entry, ""])
