# Everything from a fresh clone with Python ≥ 3.11, make and a C compiler. Every target is safe to run again,
# and needs no network the second time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TESTS  := $(VENV)/.tests-compiled
JOBS   ?= 3

# Python keeps what it has compiled, also where the caller's environment forbids it: a run of the tests starts some
# thousand processes, and each would compile our modules again, and each of pytest's every test.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-slow test-long fuzz check lint types layers fast compiled pure check-compiled wheels bench docs site release-dry-run lock image artemis sqlalchemy-2.0 clean

help:
	@echo "make setup   the virtual environment .venv, with .venv/bin/xabridge"
	@echo "make demo    the product's main job, on embedded defaults"
	@echo "make check   lint, types, layering and the fast tests, at once; make lint, types, layers, fast: one of them"
	@echo "make check PACKAGE=tm  the same of one package and its tests, for whoever changes it"
	@echo "make check PYTHONS=\"3.12 3.13\"  the fast tests with these interpreters as well, each in a .venv-3.12 of its own"
	@echo "make wheels  a wheelhouse for this interpreter, .wheels/: ours, compiled, and python-qpid-proton"
	@echo "make test    every test"
	@echo "make compiled  the hot modules compiled to C, in place; make pure removes them again"
	@echo "make check-compiled  the fast tests with compiled modules"
	@echo "make test-slow  the tests that make check leaves out"
	@echo "make test-long  every test in its long form: every point, more schedules and rounds; it takes hours"
	@echo "make test-long PART=spark  one part of it: spark, kills, brokers, databases, simulation or rest"
	@echo "make fuzz    half an hour of search for octets at which a decoder raises what it does not declare (fetches atheris)"
	@echo "make bench   every benchmark, into .bench/, docs/benchmarks.md and its picture"
	@echo "make docs    the generated parts of docs/"
	@echo "make site    the documentation's site, into site/ (needs npm the first time)"
	@echo "make release-dry-run  what a release would upload, built, checked and tried; it uploads and tags nothing"
	@echo "make lock    the locked versions anew, from pyproject.toml"
	@echo "make image   the containers' image, with buildah on a base of its own (needs root, buildah, debootstrap)"
	@echo "make sqlalchemy-2.0  the tests of sessions with SQLAlchemy 2.0, from .sqlalchemy-2.0/"
	@echo "make artemis ActiveMQ Artemis, into .artemis/, for the tests against it (needs Maven and Java)"

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "xabridge needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 setup" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(STAMP)

# Once, in one process: else each of pytest's would compile every test at the same time. What can't be collected is
# told by the run that follows.
$(TESTS): $(STAMP)
	@if $(BIN)/python -m pytest --collect-only -qq >/dev/null; then touch $(TESTS); fi

fuzz: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris
	$(BIN)/python -m tests.fuzz --seconds 1800

demo: setup
	$(BIN)/xabridge demo

test: setup $(TESTS)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder --durations 40 --durations-min 5

# With the tests of `make check` these are all tests: a run of both need not run any twice.
test-slow: setup $(TESTS)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder --durations 40 --durations-min 5 -m slow

test-long: export XABRIDGE_LONG = all
test-long: export XABRIDGE_POINTS = all
test-long: export XABRIDGE_INTERRUPTIONS = all
test-long: export XABRIDGE_SPARK_FAULTS = all
test-long: export XABRIDGE_SCHEDULES = 40000
test-long: export XABRIDGE_ROUNDS = 20
test-long: export XABRIDGE_KILLS = 60
test-long: export XABRIDGE_KILL_ROUNDS = 60
test-long: export XABRIDGE_HOSTILE = 10000
test-long: export XABRIDGE_IMAGE = 1
test-long: export XABRIDGE_BACKLOG = 1000000
test-long: setup
	$(if $(PART),$(if $(LONG_$(PART)),,$(error PART is one of spark, kills, brokers, databases, simulation, rest)))
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder --durations 40 --durations-min 5 $(LONG_$(PART))

# Each test is in one part: `rest` is what the others leave out.
LONG_spark := tests/xabridge/pipeline tests/xabridge/demo
LONG_kills := tests/crash tests/kept tests/tm/log
LONG_brokers := tests/interop tests/rm_openwire tests/rm_amqp
LONG_databases := tests/rm_db tests/rm_delta tests/dtx/store tests/xabridge/outbox
LONG_simulation := tests/simulation tests/dtx/broker
LONG_rest := tests $(patsubst %,--ignore %,$(foreach part,spark kills brokers databases simulation,$(LONG_$(part))))

# All of it at once: mypy and the end of the tests take one processor each. PACKAGE is a package or a part of one, as in
# `make check PACKAGE=dtx.broker`: then that and its tests are checked, and the layers of all.
check: setup
	$(MAKE) --no-print-directory --jobs lint types layers fast
	$(if $(PYTHONS),$(MAKE) --no-print-directory $(PYTHONS:%=fast-%))

PART_OF := $(subst .,/,$(PACKAGE))
CHECKED := $(PART_OF) $(PART_OF:%=tests/%)

lint: setup
	$(BIN)/ruff check $(or $(strip $(CHECKED)),.)
	$(BIN)/ruff format --check $(or $(strip $(CHECKED)),.)
	$(if $(PACKAGE),,$(BIN)/python -m tools.house_style)

types: setup
	$(BIN)/mypy $(CHECKED)

layers: setup
	$(BIN)/lint-imports

fast: setup $(TESTS)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q -m "not slow" $(PART_OF:%=tests/%)

# The same with another interpreter: make fast-3.12. A python3.12 that is only a shim of pyenv's is passed over.
fast-%: .venv-%/.installed
	.venv-$*/bin/python -m pytest -n $(JOBS) --dist worksteal -q -m "not slow" $(PART_OF:%=tests/%)

.venv-%/.installed: pyproject.toml requirements.lock
	@for python in python$* "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$*.*/bin/python; do \
	  test -x .venv-$*/bin/python || ! $$python -c "" 2>/dev/null || $$python -m venv .venv-$*; \
	done; test -x .venv-$*/bin/python || { echo "there is no Python $* here" >&2; exit 1; }
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

.PRECIOUS: .venv-%/.installed

compiled: setup
	$(BIN)/python -m tools.compilation build

pure: setup
	$(BIN)/python -m tools.compilation remove

# The tests that meet a compiled module: with LONG=1 those as well that only meet one through what the others test. The
# modules are compiled before, without optimisation, and pure again behind it, also where a test failed. The long form of
# `test_wheel.py` runs what the C compiler has optimised.
MEET_COMPILED := tests/dtx tests/rm_amqp tests/interop tests/kept tests/simulation tests/test_compiled.py
ALSO_MEET_COMPILED := tests/crash tests/tm/consumer tests/xabridge --ignore tests/xabridge/testing/reference
check-compiled: setup
	$(BIN)/python -m tools.compilation build --quick
	XABRIDGE_COMPILED=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q -m "not slow" $(MEET_COMPILED) \
	  $(if $(LONG),$(ALSO_MEET_COMPILED)); \
	  status=$$?; $(BIN)/python -m tools.compilation remove; exit $$status

# What has no binary wheel, or is faster with one; everything else comes from the index (docs/install.md).
wheels: setup
	rm -rf .wheels
	XABRIDGE_COMPILE=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir .wheels .
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir .wheels \
	  "$$(sed -n 's/^\(python-qpid-proton==[^ ]*\).*/\1/p' requirements.lock)"
	@ls .wheels

bench: setup
	$(BIN)/python -m bench all --out .bench
	$(BIN)/python -m bench.report .bench docs

docs: setup
	$(BIN)/python -m bench.diagrams docs/state-machines.md
	$(BIN)/python -m bench.packages --into docs/architecture.md
	$(BIN)/python -m bench.settings
	$(BIN)/python -m bench.conditions

site: setup
	$(BIN)/python -m bench.site

release-dry-run: setup
	$(BIN)/python -m bench.release

lock:
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python -m uv pip compile --quiet --universal --generate-hashes --group dev --group docs --all-extras \
	  --custom-compile-command "make lock" -o requirements.lock pyproject.toml
	sed -n 's/^\([a-z0-9][^ ]*==[^ ]*\).*/\1/p' requirements.lock > .locked
	$(BIN)/python -m uv pip compile --quiet --universal --generate-hashes -c .locked --extra metrics \
	  --custom-compile-command "make lock" -o containers/requirements.lock pyproject.toml
	echo hatchling | $(BIN)/python -m uv pip compile --quiet --universal --generate-hashes -c .locked \
	  --custom-compile-command "make lock" -o containers/build.lock -
	rm .locked

image:
	containers/image.sh

sqlalchemy-2.0: setup
	$(BIN)/python -m pip install --quiet --upgrade --target .sqlalchemy-2.0 'sqlalchemy[asyncio]==2.0.*'
	PYTHONPATH=.sqlalchemy-2.0 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q tests/tm/test_zope.py \
	  tests/rm_db/sessions tests/rm_db/decider/test_deciding.py tests/rm_db/decider/test_mariadb.py

artemis:
	mvn -q -B -f tests/interop/artemis/pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.artemis
	@echo "now: XABRIDGE_ARTEMIS=.artemis $(BIN)/python -m pytest tests/interop/test_artemis.py"

clean:
	rm -rf .venv .venv-* .wheels .compiled .demo .bench .artemis .activemq site theme/scripts .sqlalchemy-2.0 .mypy_cache .pytest_cache .ruff_cache .hypothesis
