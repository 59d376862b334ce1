# Every target makes what it needs: a machine with Python 3.11+ and make is enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=

.PHONY: demo test test-all rules scale bounds accuracy bench film soak simulate mutants fuzz-events fuzz-requests check lock lowest \
	image-steps sbom clean

demo: $(VENV)/.embedded ## A real Kafka and Redis, events, and the service that learns them
	@$(BIN)/perceptron demo $(ARGS)

test: $(VENV)/.dev ## Each main road on real servers; five tests at a time, since most of them wait (ARGS="-n 0" for one)
	$(BIN)/python -m pytest -n 5 --dist worksteal -m "not nightly" $(ARGS)

test-all: $(VENV)/.dev image-steps ## Everything, each fault as often as docs/guarantees.md promises: two hours (ARGS=tests/faults for a part)
	FAULTS=all $(BIN)/python -m pytest -n 2 --dist worksteal -vv -rP $(ARGS)

RULE := deploy/kubernetes/components/monitoring/rules.yaml
rules: ## The PrometheusRule of deploy/kubernetes, from deploy/prometheus/rules.yml
	(sed '/^spec:/q' $(RULE); sed '/^#/d; s/^./  &/' deploy/prometheus/rules.yml) > $(RULE).new
	mv $(RULE).new $(RULE)

scale: $(VENV)/.dev ## A million named columns: what is written, followed and restored, with figures
	NAMES=1000000 $(BIN)/python -m pytest -s tests/integration/test_scale.py $(ARGS)

bounds: $(VENV)/.dev ## The live mistake bound and the confidence sequences on 10,000 random streams
	STREAMS=10000 $(BIN)/python -m pytest -s --timeout 3000 tests/unit/learning/evaluation/test_bounds.py -k random_streams
	STREAMS=10000 $(BIN)/python -m pytest -s --timeout 3000 tests/unit/learning/evaluation/test_confidence.py

accuracy: $(VENV)/.dev ## Prequential accuracy on real streams beside River's: the table of docs/model.md
	$(BIN)/python -m bench.accuracy $(ARGS)

film: $(VENV)/.dev ## The moving picture of README.md: the demo and its page, a minute
	$(BIN)/python docs/film.py

bench: $(VENV)/.dev $(VENV)/.bench ## The figures of docs/performance.md: under 20 minutes; ONLY=P1 those rows. BESIDE=COMMIT: an event's cost beside that tree's
	ONLY="$(ONLY)" $(BIN)/python -m bench$(if $(BESIDE),.event $(BESIDE))

MINUTES ?= 60
soak: $(VENV)/.dev ## Full speed with predictions, saves, new names and bad events: memory, latency and the fold at the end
	$(BIN)/python -m bench.soak $(MINUTES)

EVENTS ?= 1000000
fuzz-events: $(VENV)/.dev ## Mutated events through the decoder and the learner, against a judge of its own
	$(BIN)/python -m tests.fuzz.events $(EVENTS)

REQUESTS ?= 100000
fuzz-requests: $(VENV)/.dev ## Mutated predictions and posts to the application, so many of each, against the same judge
	$(BIN)/python -m tests.fuzz.requests $(REQUESTS)
	$(BIN)/python -m tests.fuzz.posts $(REQUESTS)

simulate: $(VENV)/.dev ## Faults in any order: SEEDS=100000 runs so many, SEED=17 prints the history of one
	$(BIN)/python -m tests.simulation $(or $(SEED),0:$(or $(SEEDS),300))

mutants: $(VENV)/.dev ## Disables one protection at a time, and prints which seed or test fails
	$(BIN)/python -m tests.simulation.mutants

check: $(VENV)/.dev ## Linters and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

UPGRADE ?= --upgrade
LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	--no-emit-index-url --no-emit-find-links
lock: $(VENV)/.build ## The newest versions that pyproject.toml allows, with hashes; UPGRADE= keeps those that still fit
	$(LOCK) $(UPGRADE) pyproject.toml --extra dev -o requirements/dev.txt
	$(LOCK) pyproject.toml -c requirements/dev.txt -o requirements/run.txt
	$(LOCK) pyproject.toml -c requirements/dev.txt --extra embedded -o requirements/embedded.txt
	$(LOCK) $(UPGRADE) --group build -o requirements/build.txt
	$(LOCK) $(UPGRADE) --group bench -c requirements/dev.txt -o requirements/bench.txt

LOWEST := tests/unit tests/contract $(addprefix tests/integration/test_,main_job.py command.py http.py produce.py export.py fit.py)
lowest: $(VENV)/.build ## A choice of the tests with the oldest versions that pyproject.toml allows
	$(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/lowest
	$(UV) pip install --python $(VENV)/lowest/bin/python --resolution lowest-direct --editable '.[dev]'
	$(VENV)/lowest/bin/python -m pytest -n 2 -m 'not long' -p no:cacheprovider --ignore tests/unit/test_dependencies.py $(LOWEST) $(ARGS)

image-steps: $(VENV)/.dev ## The Dockerfile's own steps in clean roots, and what they made on a read-only file system: needs root (FOLDER keeps what it made)
	$(BIN)/python -m tests.image $(FOLDER)

sbom: $(VENV)/.dev ## sbom.json: what the image installs, as CycloneDX, with licences
	$(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/run
	$(UV) pip install --quiet --python $(VENV)/run/bin/python $(LOCKED) -r requirements/run.txt
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o sbom.json $(VENV)/run

clean: ## Remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

# From the locks, by uv, which is quick; by pip where uv does not reach what pip is set up to.
LOCKED := --require-hashes --no-deps
CERTIFICATES := (echo "behind a TLS proxy (CERTIFICATE_VERIFY_FAILED): set PIP_CERT, SSL_CERT_FILE (uv) and REQUESTS_CA_BUNDLE \
(Kafka's jars) to the file of its certificate" >&2; false)
UV := $(BIN)/python -m uv
$(VENV)/.embedded $(VENV)/.dev $(VENV)/.bench: $(VENV)/.%: requirements/%.txt $(VENV)/.build pyproject.toml
	@echo "installing the service and its $* packages into $(VENV)"
	@$(UV) pip install --python $(BIN)/python $(LOCKED) -r $< || $(PIP) install $(LOCKED) -r $< || $(CERTIFICATES)
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@test $* = dev || echo "compiling what it learns and reads with, once: 10 to 20 seconds"
	@test $* = dev || $(BIN)/python -c 'from service.process.service import warm_up; warm_up()' # tests do it while their servers start
	@touch $@

$(VENV)/.build: requirements/build.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	@echo "making the environment $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet $(LOCKED) -r $< || $(CERTIFICATES)
	@touch $@
