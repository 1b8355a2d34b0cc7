"""The fleet of the examples in docs/: what two vehicles made in an hour, as batches on the topic of their region.

`python -m tests.example_fleet` sends them to the stack of `waybill up`, and writes to the current folder what the
commands of the pages need: `cloud.toml` for the jobs, `publisher.toml` for who publishes, and the scenario with its
fences, tariffs and accounts. `--seed 14` sends
another hour, in which the two vehicles meet. The same seed gives the same batches.
"""

import argparse
import os
import sys
from collections import defaultdict
from pathlib import Path

from deploy.local import StackNotRunning, StackState, stack_access, stack_operator
from edge_agent.intake.messages import parse_message
from simulator import drive, generated_scenario, write_folder
from simulator.scenario import Scenario
from tests.pulsar_clients import open_client
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.record import Batch, Record, encode

EPOCHS = {"eu-0001": 58830363821697206, "eu-0002": 58830363830750330}
SEED = 7
BATCH_RECORDS = 110
TENANT, REGION = "fleet", "eu"
TOPIC = f"persistent://fleet/telemetry-{REGION}/batches"


def example_scenario(seed: int = SEED) -> Scenario:
    return generated_scenario(seed=seed, vehicles=len(EPOCHS), regions=(REGION,), duration_s=3600)


def example_batches(scenario: Scenario) -> list[Batch]:
    records: defaultdict[str, list[Record]] = defaultdict(list)
    for message in drive(scenario):
        (parsed,) = parse_message(message.topic, message.payload)
        made_us = scenario.start_ms * 1000 + round(message.offset_s * 1_000_000)
        time_us = made_us if parsed.device_time_us is None else parsed.device_time_us
        of_device = records[message.device]
        of_device.append(Record(len(of_device) + 1, time_us, parsed.body))
    return [
        Batch(device, EPOCHS[device], len(made), tuple(made[first : first + BATCH_RECORDS]))
        for device, made in sorted(records.items())
        for first in range(0, len(made), BATCH_RECORDS)
    ]


def send(batches: list[Batch], service_url: str, access: PulsarAccess) -> None:
    client = open_client(service_url, access)
    try:
        producer = client.create_producer(TOPIC)
        for batch in batches:
            about = {"tenant": TENANT, "device": batch.device, "region": REGION, "epoch": str(batch.epoch)}
            producer.send(encode(batch), properties=about, partition_key=batch.device)
    finally:
        client.close()


def main() -> None:
    options = argparse.ArgumentParser(description="Send the fleet of the documented examples to a local stack.")
    options.add_argument(
        "--stack",
        type=Path,
        default=Path(os.environ.get("WAYBILL_STACK") or "var/local"),
        help="folder of `waybill up`",
    )
    options.add_argument("--seed", type=int, default=SEED)
    given = options.parse_args()
    try:
        stack = StackState.load(given.stack)
    except StackNotRunning as absent:
        sys.exit(str(absent))
    for name, role in (("cloud.toml", "jobs"), ("publisher.toml", "publisher")):
        Path(name).write_text(_settings(given.stack, stack, role))
    scenario = example_scenario(given.seed)
    write_folder(Path("scenario"), scenario)
    batches = example_batches(scenario)
    access = stack_access(given.stack, f"gateway-{REGION}")
    send(batches, stack.address(f"pulsar-{REGION}", "service_url"), access)
    count = sum(len(batch.records) for batch in batches)
    sys.stdout.write(f"sent {count} records in {len(batches)} batches\n")


def _settings(folder: Path, stack: StackState, role: str) -> str:
    hq = {name: stack.address("pulsar-hq", name) for name in ("service_url", "admin_url")}
    return (
        'lake = "lake"\ncheckpoints = "lake-checkpoints"\n\n[[clusters]]\nname = "hq"\n'
        + "".join(f'{name} = "{address}"\n' for name, address in hq.items())
        + f"\n[access]\n{stack_access(folder, role).as_toml()}"
        # the scenario drives on a fixed day, however long ago that is
        + "\n[ingest]\nmax_age_days = 36500\n\n"
        + stack_operator(folder.resolve()).reference_settings()
    )


if __name__ == "__main__":
    main()
