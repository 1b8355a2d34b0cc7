"""What the console refuses."""

from cloud_jobs.errors import CloudError


class ConsoleRefused(CloudError):
    """The console cannot start as it is set."""

    exit_status = 78


class NotThere(CloudError):
    """What an address names does not exist, or the viewer may not see it: the answer is the same for both."""


class BadQuery(CloudError):
    """A parameter of an address that cannot be read. `name`: the parameter; `text`: what is wrong with it."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text


class Busy(CloudError):
    """Too much is being computed now; the same request can succeed later."""
