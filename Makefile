# `make demo` and `make test` do all the set-up they need; `make help` lists the rest.
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
CLUSTER ?=
LAKE ?= folder
EXTRAS ?=
IMAGES ?=

.PHONY: help setup python packages package-tools images image-tools kubernetes kubernetes-tools kubernetes-demo demo test check unit format nightly drills bench-replication bench-centre bench-source bench-source-growth bench-spatial bench-edge bench-gateway bench-billing bench-alerts bench-trial bench-console weight

help:  ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

setup:  ## System packages, the virtual environment, Pulsar's server, an S3 server, promtool
	@deploy/bootstrap.sh

python:
	@deploy/bootstrap.sh python

packages: python package-tools  ## What another machine installs, in dist; EXTRAS="gateway": archives of their wheels too
	@$(PYTHON) -m deploy.packages $(EXTRAS)

package-tools:
	@deploy/bootstrap.sh package-tools

images: python image-tools  ## Images of gateway, centre and agent, in dist/images; IMAGES="gateway": only these
	@$(PYTHON) -m deploy.images $(IMAGES)

image-tools:
	@deploy/bootstrap.sh image-tools

kubernetes: kubernetes-tools  ## The proof on a real cluster of this machine, as root
	@$(MAKE) --no-print-directory images
	@$(MAKE) --no-print-directory images IMAGES=pulsar
	@$(PYTEST) tests/kubernetes -m nightly --timeout 1800

kubernetes-tools: python  ## Programs of the cluster, built by Go into the user's cache (20 minutes, once)
	@deploy/bootstrap.sh kubernetes-tools
	@deploy/kubernetes/cluster/build.sh

kubernetes-demo: kubernetes-tools  ## The demo on a cluster of this machine, as root: vehicles outside, the rest inside
	@$(MAKE) --no-print-directory images IMAGES="gateway centre pulsar"
	@$(PYTHON) -m deploy.kubernetes.cluster up $(foreach name,gateway centre pulsar,--image dist/images/waybill-$(name)_*_amd64.tar)
	@$(PYTHON) -m deploy.kubernetes.demo; status=$$?; $(PYTHON) -m deploy.kubernetes.cluster down; exit $$status

demo: setup  ## Vehicles to a checked bill on real servers; CLUSTER=1: on Spark workers; LAKE=s3: on an S3 server
	@$(PYTHON) -m waybill demo --lake '$(LAKE)' $(if $(CLUSTER),--spark-cluster)

# Each part has servers of its own or none, and the system tests mostly wait for theirs, so all parts run beside each
# other; the short tests of the console are followed by the demo and the trial, which are whole stacks. `exec`: with a
# shell between them, a signal to make would not reach what it started.
SHARED_SERVERS := $(PYTEST) tests/system -m "system and not own_servers and not whole_stack and not nightly" --durations=15
OWN_SERVERS := $(PYTEST) tests/system -m "own_servers and not nightly" -q --durations=15
UNIT := $(PYTEST) --ignore=tests/cloud_jobs --ignore=tests/console --ignore=tests/system -m "not system and not nightly" -q --durations=15
JOBS := $(PYTEST) tests/cloud_jobs --ignore=tests/cloud_jobs/billing -m "not system and not nightly" -q --durations=15
BILLING := $(PYTEST) tests/cloud_jobs/billing -m "not system and not nightly" -q --durations=15
CONSOLE_AND_STACKS := $(PYTEST) tests/console tests/system -m "(not system or whole_stack) and not nightly" -q --durations=15

test: setup  ## Unit tests, and beside them the system tests on the real servers
	@exec $(PYTHON) tests/run_parts.py '$(SHARED_SERVERS)' '$(OWN_SERVERS)' '$(UNIT)' '$(JOBS)' '$(BILLING)' '$(CONSOLE_AND_STACKS)'

unit: python  ## The tests that need no server
	@$(PYTEST) -m "not system and not nightly" -q

# a process has one Spark: where executors are started, no other test may have started it
nightly: setup package-tools  ## The long forms of the proofs
	@deploy/bootstrap.sh verapdf
	@$(PYTEST) -m "nightly and not own_servers" --timeout 7200
	@$(PYTEST) -m "nightly and own_servers" --timeout 7200

drills: setup  ## Each drill, the centre lost twice more at its worst moments: every record counted; LAKE=s3
	@exec $(PYTHON) tests/run_parts.py then '$(PYTHON) -m waybill drill failback --lake $(LAKE)' \
		'$(PYTHON) -m waybill drill region-loss --lake $(LAKE)' '$(PYTHON) -m waybill drill link-cut --lake $(LAKE)' \
		'$(PYTHON) -m waybill drill failback --lake $(LAKE) --moment planned' \
		'$(PYTHON) -m waybill drill failback --lake $(LAKE) --moment written'

bench-centre: setup  ## From Pulsar into the lake: records a second, a light micro-batch, what age costs
	@$(PYTHON) -m benchmarks.centre

bench-source: setup  ## The Pulsar source against plain readers, and a light micro-batch
	@$(PYTHON) -m benchmarks.source

bench-source-growth: setup  ## What the Pulsar source holds over 1,000 micro-batches and 100 rotations of its token
	@$(PYTHON) -m benchmarks.source growth

bench-replication: setup  ## How long a record takes from a region to the centre, at rest and over a slow link
	@$(PYTHON) -m benchmarks.replication

check: python  ## Format, lint, types, layers, charts
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@deploy/bootstrap.sh helm
	@$(PYTEST) tests/deploy/kubernetes/test_charts.py -q

format: python  ## Put the code in its format
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

bench-spatial: python  ## What the spatial engine does in a second of one core
	@$(PYTHON) -m benchmarks.spatial

weight: python  ## What the project weighs, beside its limits
	@$(PYTHON) -m tests.structure.weight

bench-edge: python  ## What the agent takes in, keeps and delivers in a second
	@$(PYTHON) -m benchmarks.edge

bench-gateway: setup  ## What goes through a gateway, also with 100,000 devices, beside pulsar-perf, and beside a noisy tenant
	@$(PYTHON) -m benchmarks.gateway

bench-billing: setup  ## What billing costs: a month rated, closed and issued, one large payer, one invoice shown
	@$(PYTHON) -m benchmarks.billing

bench-alerts: setup  ## How long an alert takes, hop by hop, at 5,000 fixes a second; what a killed alert process costs
	@$(PYTHON) -m benchmarks.alerts

bench-trial: setup  ## From `waybill try` with no stack running to the draft line of an own device, three times
	@$(PYTHON) -m benchmarks.trial

bench-console: setup  ## What the console costs in a real browser: live, replay, first paint, a large lake, sizes, memory
	@$(PYTHON) -m benchmarks.console
