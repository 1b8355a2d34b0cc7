# `make demo` and `make test` do all the set-up they need; `make help` lists the rest.
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
REPLAY ?=

.PHONY: help setup python demo test test-shared-servers test-others test-alone check unit format nightly drills bench-replication bench-source bench-source-growth bench-spatial bench-edge bench-wire bench-gateway

help:  ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

setup:  ## System packages, the virtual environment, Pulsar's server and Delta's jars
	@deploy/bootstrap.sh

python:
	@deploy/bootstrap.sh python

demo: setup  ## Vehicles to a checked bill on real servers; REPLAY=FILE.csv sends a recorded track instead
	@$(PYTHON) -m waybill demo $(if $(REPLAY),--replay '$(REPLAY)')

# The system tests mostly wait for servers, so the unit tests run beside them; demo, drills and kills take the whole
# machine, and run last. Each part runs to its end, whatever fails.
test: setup  ## Unit tests, and beside them the system tests on the real servers
	@failed=0; $(MAKE) --no-print-directory --jobs=2 test-shared-servers test-others || failed=1; \
	$(MAKE) --no-print-directory test-alone || failed=1; exit $$failed

test-shared-servers:
	@$(PYTHON) -m pytest tests/system -m "system and not own_servers and not alone and not nightly" --durations=15

# What it says comes in one piece, when it ends.
test-others:
	@log=$$(mktemp); trap 'rm -f $$log' EXIT; \
	$(PYTHON) -m pytest -m "(not system or own_servers) and not alone and not nightly" -q --durations=15 >$$log 2>&1; failed=$$?; \
	printf '\n'; cat $$log; exit $$failed

test-alone:
	@$(PYTHON) -m pytest tests/system -m "alone and not nightly" --durations=5

unit: python  ## The tests that need no server
	@$(PYTHON) -m pytest -m "not system and not nightly" -q

nightly: setup  ## The long forms of the proofs
	@$(PYTHON) -m pytest -m nightly --timeout 7200

drills: setup  ## Each drill, and the centre lost twice more at its worst moments: every record counted
	@failed=0; for drill in failback region-loss link-cut "sweep --snapshot-period-s 1 --trigger-s 1 --moment planned --moment written"; do \
		$(PYTHON) -m waybill drill $$drill || failed=1; done; exit $$failed

bench-source: setup  ## The Pulsar source against plain readers, and a light micro-batch
	@$(PYTHON) -m benchmarks.source

bench-source-growth: setup  ## What the Pulsar source holds over 1,000 micro-batches and 100 rotations of its token
	@$(PYTHON) -m benchmarks.source.growth

bench-replication: setup  ## How long a record takes from a region to the centre, at rest and over a slow link
	@$(PYTHON) -m benchmarks.replication

check: python  ## Format, lint, types, layers
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports

format: python  ## Put the code in its format
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

bench-spatial: python  ## What the spatial engine does in a second of one core
	@$(PYTHON) -m benchmarks.spatial

bench-edge: python  ## What the agent takes in, keeps and delivers in a second, beside Telegraf and a Mosquitto bridge
	@$(PYTHON) -m benchmarks.edge

bench-wire: python  ## What a batch costs to write, judge and read, and the worst 64 kB for each parser
	@$(PYTHON) -m benchmarks.wire

bench-gateway: python  ## What one gateway holds in memory for 100,000 devices, and what a batch costs it
	@$(PYTHON) -m benchmarks.gateway
