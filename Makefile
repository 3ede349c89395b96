# Every command of the project. `make help` lists them; .ci/run and the docs call these and nothing else.
.DEFAULT_GOAL := help
PY := .venv/bin/python
PYTEST := $(PY) -m pytest
.PHONY: help demo check lint types imports unit component chart-test cluster-test test image cluster cluster-down bench protos format

help: ## List the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.installed: pyproject.toml tools/setup
	@tools/setup

demo: .venv/.installed ## The whole path of a pod in one process: mock devices, no cluster, no GPU
	@.venv/bin/hamipy demo

lint: .venv/.installed ## ruff: style, bugs, formatting
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: .venv/.installed ## mypy --strict
	.venv/bin/mypy

imports: .venv/.installed ## import-linter: the layers of the architecture
	.venv/bin/lint-imports

unit: .venv/.installed ## Unit tests
	$(PYTEST) -q tests/unit

check: lint types imports unit ## The fast part of the tests, under a minute

component: .venv/.installed ## Extender over HTTP, device plugin over real sockets, in-memory API server
	$(PYTEST) -q tests/component

chart-test: .venv/.installed ## The chart, rendered and held to its schema
	$(PYTEST) -q tests/chart

cluster-test: .venv/.installed ## A real cluster: KUBERNETES=1.34.4 picks another version
	$(PYTEST) -q tests/cluster

test: lint types imports ## Everything
	$(PYTEST) -q tests

image: .venv/.installed ## The image as an OCI archive, without a container registry
	$(PY) -m tools.image

cluster: .venv/.installed ## A real cluster with the chart installed, left running: PROFILES=t4x1,t4x1
	$(PY) -m tests.cluster up

cluster-down: .venv/.installed ## Take that cluster away without a trace
	$(PY) -m tests.cluster down

bench: .venv/.installed ## All benchmarks, as tables
	$(PY) -m benchmarks

protos: .venv/.installed ## Generate the kubelet's API from protos/
	protos/generate

format: .venv/.installed ## Format the code
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .
