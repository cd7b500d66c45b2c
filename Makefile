# Two commands for a newcomer: `make demo` and `make test`. Each makes its own virtual environment.
PYTHON ?= python3
DEMO_VENV ?= .venv-demo
TEST_VENV ?= .venv-test
OLD_VENV ?= .venv-oldest
PIP_FLAGS = --quiet --disable-pip-version-check -c constraints.txt
# Two test processes with one thread each: small tensors gain nothing from more threads.
PYTEST = OMP_NUM_THREADS=1 $(1)/bin/python -m pytest -n 2

.PHONY: help demo test test-oldest check clean

help:
	@echo "make demo         run the shipped spiking network on 1,000 images and certify it"
	@echo "make test         run the tests"
	@echo "make test-oldest  run the architecture tests against the oldest transformers supported"
	@echo "make check        lint and type-check"

demo: $(DEMO_VENV)/ready
	$(DEMO_VENV)/bin/spikezip demo

test: $(TEST_VENV)/ready
	$(call PYTEST,$(TEST_VENV))

check: $(TEST_VENV)/ready
	$(TEST_VENV)/bin/ruff check .
	$(TEST_VENV)/bin/ruff format --check .
	$(TEST_VENV)/bin/mypy

test-oldest: $(OLD_VENV)/ready
	$(call PYTEST,$(OLD_VENV)) tests/test_architectures.py tests/test_checkpoint.py tests/test_coverage.py

$(DEMO_VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/pip install $(PIP_FLAGS) ".[cli,fast]"
	touch $@

$(TEST_VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TEST_VENV)
	$(TEST_VENV)/bin/pip install $(PIP_FLAGS) -e ".[dev]"
	touch $@

$(OLD_VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(OLD_VENV)
	$(OLD_VENV)/bin/pip install $(PIP_FLAGS) transformers==5.17.0 -e ".[dev]"
	touch $@

clean:
	rm -rf $(DEMO_VENV) $(TEST_VENV) $(OLD_VENV) build dist *.egg-info
