# Every target makes what it needs: a machine with Python 3.11+ and make is enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=

.PHONY: demo test faults scale bounds accuracy bench simulate mutants fuzz fuzz-events fuzz-requests check clean

demo: $(VENV)/.embedded ## A real Kafka and Redis, events, and the service that learns them
	@$(BIN)/perceptron demo $(ARGS)

test: $(VENV)/.dev ## All tests, on real servers; five at a time, since most of them wait (ARGS="-n 0" for one)
	$(BIN)/python -m pytest -n 5 --dist worksteal $(ARGS)

faults: $(VENV)/.dev ## Every fault on a real Kafka and Redis, quickest first, as often as docs/guarantees.md promises: 40 minutes
	FAULTS=all $(BIN)/python -m pytest -n 2 --dist worksteal -vv -rP tests/faults tests/integration/test_outages.py $(ARGS)

scale: $(VENV)/.dev ## A million named columns: what is written, followed and restored, with figures
	NAMES=1000000 $(BIN)/python -m pytest -s tests/integration/test_scale.py $(ARGS)

bounds: $(VENV)/.dev ## The live mistake bound on 10,000 random streams, and the faults that its checks notice
	STREAMS=10000 $(BIN)/python -m pytest -s --timeout 3000 tests/unit/test_bounds.py -k random_streams
	$(BIN)/python -m tests.mutants

accuracy: $(VENV)/.dev ## Prequential accuracy on real streams beside River's: the table of docs/model.md
	$(BIN)/python -m tests.accuracy $(ARGS)

bench: $(VENV)/.dev ## What an event costs by kinds of values; BESIDE=COMMIT measures that tree in turns with this one
	$(BIN)/python -m tests.bench $(BESIDE)

SECONDS ?= 120
fuzz: $(VENV)/.dev $(VENV)/.fuzz ## Coverage-guided bytes through the decoder, against the same judge
	$(BIN)/python -m tests.fuzz.guided $(SECONDS)

EVENTS ?= 1000000
fuzz-events: $(VENV)/.dev ## Mutated events through the decoder and the learner, against a judge of its own
	$(BIN)/python -m tests.fuzz.events $(EVENTS)

REQUESTS ?= 100000
fuzz-requests: $(VENV)/.dev ## Mutated requests to the application, against the same judge
	$(BIN)/python -m tests.fuzz.requests $(REQUESTS)

simulate: $(VENV)/.dev ## Faults in any order: SEEDS=100000 runs so many, SEED=17 prints the history of one
	$(BIN)/python -m tests.simulation $(or $(SEED),0:$(or $(SEEDS),300))

mutants: $(VENV)/.dev ## Protections taken away one at a time, and the seed or test that notices each
	$(BIN)/python -m tests.simulation.mutants

check: $(VENV)/.dev ## Linters and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## Remove the environment and caches
	rm -rf $(VENV) .fuzz .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.embedded $(VENV)/.dev $(VENV)/.fuzz: $(VENV)/.%: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the service and its $* packages into $(VENV)"
	@$(PIP) install --editable '.[$*]'
	@touch $@
