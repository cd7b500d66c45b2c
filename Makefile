# Two commands for a newcomer: `make demo` and `make test`. Each makes its own virtual environment.
PYTHON ?= python3
DEMO_VENV ?= .venv-demo
TEST_VENV ?= .venv-test
OLD_VENV ?= .venv-oldest
# Of all that is installed, a fraction is ever imported: Python compiles that when it meets it, in half of pip's time.
PIP_FLAGS = --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Two test processes with one thread each: small tensors gain nothing from more threads.
PYTEST = OMP_NUM_THREADS=1 $(1)/bin/python -m pytest -n 2

.PHONY: help demo test test-families test-oldest check clean

help:
	@echo "make demo         run the shipped spiking network on 1,000 images and certify it"
	@echo "make test         run the tests"
	@echo "make test-families  run the test of every family of networks, which takes several minutes more"
	@echo "make test-oldest  run the architecture tests against the oldest transformers supported"
	@echo "make check        lint and type-check"

demo: $(DEMO_VENV)/ready
	$(DEMO_VENV)/bin/spikezip demo

test: $(TEST_VENV)/ready
	$(call PYTEST,$(TEST_VENV))

test-families: $(TEST_VENV)/ready
	SPIKEZIP_FAMILIES=all $(call PYTEST,$(TEST_VENV)) tests/engines/test_families.py

check: $(TEST_VENV)/ready
	$(TEST_VENV)/bin/ruff check .
	$(TEST_VENV)/bin/ruff format --check .
	$(TEST_VENV)/bin/mypy

test-oldest: $(OLD_VENV)/ready
	$(call PYTEST,$(OLD_VENV)) tests/test_architectures.py tests/models tests/program/test_capture.py

$(DEMO_VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/pip install $(PIP_FLAGS) ".[cli,fast]"
	touch $@

$(TEST_VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TEST_VENV)
	$(TEST_VENV)/bin/pip install $(PIP_FLAGS) -e ".[dev]"
	touch $@

# The test environment, with another transformers and what that one needs in front of it.
$(OLD_VENV)/ready: $(TEST_VENV)/ready
	$(PYTHON) -m venv $(OLD_VENV)
	echo "import site; site.addsitedir('$$($(TEST_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> "$$($(OLD_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
	$(OLD_VENV)/bin/pip install $(PIP_FLAGS) transformers==5.17.0
	$(OLD_VENV)/bin/python -c "import transformers; assert transformers.__version__ == '5.17.0', transformers"
	touch $@

clean:
	rm -rf $(DEMO_VENV) $(TEST_VENV) $(OLD_VENV) build dist *.egg-info
