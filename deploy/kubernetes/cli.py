"""The command `waybill kubernetes doctor`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from deploy.kubernetes.doctor import CHECKS, Finding, NoCluster, findings, observe

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, add_completion=False, help="Waybill on a Kubernetes cluster."
)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)
_STYLES = {"error": "red", "warning": "yellow", "unknown": "magenta"}


@app.callback()
def _kubernetes() -> None:
    """Keep `doctor` a subcommand while it is the only one."""


@app.command()
def doctor(
    *,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Default: that of kubectl.")] = None,
    kubectl: Annotated[str, typer.Option(envvar="WAYBILL_KUBECTL", help="The program.")] = "kubectl",
    context: Annotated[str, typer.Option(help="A context of the kubeconfig; none: the current one.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Say what is wrong with an installation: rights, versions, clocks, storage, Secrets, certificates, pods.

    Exit status: 0 nothing is wrong, or only warnings; 1 something is wrong; 3 something could not be asked;
    69 no cluster answers.

    Example: waybill kubernetes doctor --namespace waybill
    """
    try:
        seen = observe([kubectl, *(["--context", context] if context else [])], namespace)
    except NoCluster as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(os.EX_UNAVAILABLE) from error
    found = findings(seen)
    if as_json:
        print(json.dumps({"namespace": seen.namespace, "findings": [asdict(one) for one in found]}, indent=2))  # noqa: T201
    else:
        if found:
            console.print(table(found))
        good = [check for check in CHECKS if check not in {one.check for one in found}]
        console.print(f"namespace {seen.namespace}: good are {', '.join(good) or 'none'}", soft_wrap=True)
    levels = {one.level for one in found}
    raise typer.Exit(1 if "error" in levels else 3 if "unknown" in levels else 0)


def table(found: list[Finding]) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("level", "check"):
        made.add_column(column)
    made.add_column("what", overflow="fold")
    made.add_column("problem, and what to do", overflow="fold")
    for one in found:
        made.add_row(one.level, one.check, one.subject, f"{one.problem}\n{one.remedy}", style=_STYLES[one.level])
    return made
