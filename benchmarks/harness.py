"""What all benchmarks share: the parts on the command line, a folder that goes, and figures beside their limits."""

import math
import re
import shutil
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import ge, le, lt
from pathlib import Path
from typing import Final, NamedTuple

import structlog


def parser_of(text: str | None, parts: Iterable[str] = (), usual: Iterable[str] = ()) -> ArgumentParser:
    """A parser for `python -m benchmarks.X`. Its `parts` are the `usual` ones, or all, if the command names none."""
    spec = sys.modules["__main__"].__spec__
    program = spec.name.removesuffix(".__main__") if spec is not None else sys.argv[0]
    parser, names = ArgumentParser(prog=f"python -m {program}", description=text), [*parts]

    def part(word: str) -> str:
        if word not in names:
            raise ArgumentTypeError(f"no part {word!r}: there are {', '.join(names)}")
        return word

    if names:
        default = [*usual] or names
        said = f"any of {', '.join(names)}; without one: {', '.join(default)}"
        parser.add_argument("parts", nargs="*", type=part, default=default, metavar="PART", help=said)
    return parser


def run_parts(text: str | None, parts: Mapping[str, Callable[[], bool]], usual: Sequence[str] = ()) -> int:
    """Runs the parts that are named on the command line. The exit status is 1 if a limit was not kept."""
    kept = [parts[name]() for name in parser_of(text, parts, usual).parse_args().parts]
    return 0 if all(kept) else 1


@contextmanager
def benchmark_folder(name: str) -> Iterator[Path]:
    """A folder that is removed at the end; after an error it stays, for the logs of the servers."""
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
    try:
        yield folder
    except Exception:
        sys.stderr.write(f"what the servers wrote is kept: {folder}\n")
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


class Figure(NamedTuple):
    """One row of a table. `met`: whether the limit is kept; None where the table does not judge it."""

    what: str
    measured: str
    asked: str = ""
    met: bool | None = None


_KEEPS: Final = {"<": lt, "<=": le, ">=": ge}


def limited(what: str, value: float, sign: str, limit: float, form: str = "{:,.0f}", *, counts: bool = True) -> Figure:
    """A figure beside its limit, both in one form. Without `counts` the limit is missed, whatever the figure."""
    return Figure(what, form.format(value), f"{sign} {form.format(limit)}", counts and _KEEPS[sign](value, limit))


def print_figures(title: str, figures: Iterable[Figure]) -> bool:
    """Prints each figure as it comes; False where a limit was not kept."""
    print(f"\n{title}\n\n| what | asked | measured |\n|---|---|---|")
    kept = True
    for one in figures:
        word = {None: "", True: " (met)", False: " (NOT MET)"}[one.met]
        print(f"| {one.what} | {one.asked} | {one.measured}{word} |", flush=True)
        kept &= one.met is not False
    return kept


def percentile(values: Iterable[float], share: float) -> float:
    """The value that this share does not exceed; infinite without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.inf


def peak_mib(pid: int | str = "self") -> float:
    """The most memory that a process held. Not `ru_maxrss`, which begins with that of the process that started it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return int(found[1]) / 1024 if found else 0.0


def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
