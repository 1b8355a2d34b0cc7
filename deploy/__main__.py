"""The `waybill` command."""

import sys

from deploy.lazy import LazyCommand, command_line

__all__ = ["COMMANDS", "app"]

COMMANDS = {
    "up": LazyCommand(target="deploy.local.cli:up", help="Start the local stack."),
    "status": LazyCommand(target="deploy.local.cli:status", help="Show servers, addresses, memory and links."),
    "link": LazyCommand(target="deploy.local.cli:link", help="Cut, heal or slow a link of the local stack."),
    "down": LazyCommand(target="deploy.local.cli:down", help="Stop the local stack."),
    "demo": LazyCommand(target="deploy.demo.cli:demo", help="From vehicles to a checked bill on real servers."),
    "topology": LazyCommand(target="geo.replication.cli:app", help="Plan, apply, verify and watch geo-replication."),
    "drill": LazyCommand(target="deploy.drill.cli:app", help="Lose a cluster or a link on purpose, and count."),
    "bill": LazyCommand(target="cloud_jobs.billing.cli:app", help="Compute, explain and adjust bills."),
}


def app() -> None:
    """Run the command that the arguments name."""
    command_line(COMMANDS, sys.argv[1:], "Waybill: from the vehicle to the invoice.")()


if __name__ == "__main__":
    app()
