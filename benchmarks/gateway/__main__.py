"""`make bench-gateway`: what goes through a gateway on real servers, also with 100,000 devices."""

import sys

from benchmarks.gateway import revocation, speed

PARTS = {
    "fleet": speed.fleet,
    "speed": speed.main,
    "noisy": speed.noisy,
    "revocation": revocation.main,
}


def main(wanted: list[str]) -> int:
    """The exit status: 0 where all that is asked is met, 1 where something is not, 2 for a part that there is not."""
    if unknown := [name for name in wanted if name not in PARTS]:
        print(f"no part {', '.join(unknown)}: there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    kept = [PARTS[name]() for name in wanted or PARTS]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
