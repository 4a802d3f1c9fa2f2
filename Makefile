# The two commands a newcomer needs: `make demo` and `make test`. Each sets up all it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# Tests wait more than they compute: many at a time, also on two cores. A worker costs 6 s of CPU to begin.
WORKERS ?= 8
LAB_WORKERS ?= 3  # each has a lab of its own
PYTEST   = $(BIN)/pytest -q --dist loadgroup

.PHONY: demo test setup lint unit steps sglang sglang-versions lab faults faults-mutations payload-bench gate-proof rtt downtime race zoo clean

demo: setup            ## a real SGLang on this machine: chain -> DDTREE -> two broken payloads -> rollback
	$(BIN)/python -m ddtree_deploy.sandbox.demo

test: setup lint       ## lint, types, unit tests, and the SSH tests on loopback; the worst covered modules
	$(PYTEST) -n $(WORKERS) -m "not sglang and not lab and not steps" --cov=ddtree_deploy --cov-report=
	$(BIN)/coverage report --sort=cover | sed -n '1,17p;$$p'  # of the test processes, not of those they start

setup: $(VENV)/.stamp

$(VENV)/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "ddtree-deploy needs Python 3.10 or newer; name one: make PYTHON=python3.11 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV) 2>/dev/null || { rm -rf $(VENV); \
	  test "$$(id -u)" = 0 && apt-get update -q && apt-get install -qy python3-venv && $(PYTHON) -m venv $(VENV); } \
	  || { echo "cannot make a venv: apt-get install python3-venv, then again" >&2; exit 2; }
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: setup            ## the tests that start nothing, in seconds
	$(PYTEST) -n auto -m unit

steps: setup           ## outputs, terminal, encoding, record broken at each step of a rollout: the exit code is the host's
	$(PYTEST) -n $(WORKERS) -m steps

sglang: setup          ## tests with real SGLang servers, in the sandbox's venv (made when missing)
	$(BIN)/ddtree-deploy sandbox up
	DDTREE_REQUIRE_SGLANG=1 $(BIN)/pytest -q -m sglang

# The releases that the payload serves beside the sandbox's own; 0.5.13 brings torch 2.11 (4.5 GB as a CUDA build).
SGLANG_VERSIONS ?= 0.5.22 0.5.13
sglang-versions: setup ## the payload's tests, real servers too, on the other SGLang releases that it serves
	$(BIN)/python -m ddtree_deploy.sandbox.versions .sandbox/versions $(SGLANG_VERSIONS)
	set -e; for version in $(SGLANG_VERSIONS); do \
	  DDTREE_REQUIRE_SGLANG=1 DDTREE_SGLANG_PYTHON=$$PWD/.sandbox/versions/$$version/venv/bin/python3 \
	    $(BIN)/pytest -q -m sglang tests/payload; done

lab: setup             ## tests on real systemd hosts in network namespaces; needs root
	DDTREE_REQUIRE_LAB=1 $(BIN)/pytest -q -n $(LAB_WORKERS) --dist loadfile -m lab

payload-bench: setup   ## microseconds per tree: the plain reference against the fast CPU path, same outputs
	$(BIN)/ddtree-deploy sandbox up
	.sandbox/home/venv/bin/python benchmarks/payload_bench.py

gate-proof: setup      ## real SGLang, ten times: a slowed server fails `benchmark`, verify steps tell tree from chain
	$(BIN)/ddtree-deploy sandbox up
	$(BIN)/python -m benchmarks.gate_proof

rtt: setup             ## round trips and CPU of a rollout through a WAN, beside one hand-written tar over ssh; root
	$(BIN)/python -m benchmarks.rtt

downtime: setup        ## seconds without service, as a client sees them, beside `systemctl restart`; needs root
	$(BIN)/python -m benchmarks.downtime

faults: setup          ## every fault at every instant of a rollout and a rollback, on real hosts; needs root
	$(BIN)/python -m tests.lab.matrix
	$(BIN)/python -m tests.lab.matrix --mutations

faults-mutations: setup
	$(BIN)/python -m tests.lab.matrix --mutations

zoo: setup             ## hosts as people have them: each served as asked, or refused for a true reason; needs root
	$(BIN)/python -m tests.lab.zoo

race: setup            ## two controllers in the same second, 50 times: one wins, the other names it
	DDTREE_RACES=50 DDTREE_REQUIRE_LAB=1 $(BIN)/pytest -q tests/lab/test_race.py

clean:                 ## ends the sandbox, removes it and the venv
	-$(BIN)/ddtree-deploy sandbox down --purge
	rm -rf $(VENV) .coverage build *.egg-info
