# make demo: see it work.  make test: prove it works.  Both set up all they need; see README.md.

ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
VENV ?= $(ROOT)/.venv
BIN := $(VENV)/bin
# For arguments: make demo ARGS="--seed 7 --keep", make test ARGS="tests/py/infra -k crash".
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test bench prove lint docs setup setup-dev clean

help:
	@sed -n 's/^## //p' $(ROOT)/Makefile

## make demo    set up, then deliver 1,000 movements through faults to a demo ledger
demo: setup
	@$(BIN)/trex demo $(ARGS)

## make test    set up, then everything that CI runs: linters, type checks, all tests
test: setup-dev
	@VENV=$(VENV) $(ROOT)/tools/test.sh $(ARGS)

## make lint    only the linters and type checks
lint: setup-dev
	@VENV=$(VENV) $(ROOT)/tools/test.sh --lint

## make bench   measure against a pgbench floor of the same run
bench: setup-dev
	@cd $(ROOT) && $(BIN)/python -m bench $(ARGS)
	@cd $(ROOT) && $(BIN)/python -m bench.daemon $(if $(findstring --quick,$(ARGS)),--quick)

## make prove   the long proofs, for hours
prove: setup-dev
	@cd $(ROOT) && $(BIN)/python -m tools.prove $(ARGS)

## make docs    write the reference pages again from the SQL comments and the commands
docs: setup-dev
	@cd $(ROOT) && $(BIN)/python -m tools.docs $(ARGS)

## make setup   only set up: .venv with the package, PostgreSQL included
setup:
	@$(ROOT)/tools/setup.sh $(VENV) embedded

setup-dev:
	@$(ROOT)/tools/setup.sh $(VENV) dev

## make clean   remove the virtual environment, caches and build output
clean:
	@cd $(ROOT) && rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .prove
	@cd $(ROOT) && find . -name __pycache__ -type d -prune -exec rm -rf {} +
