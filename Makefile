# The two commands for users are `make demo` and `make test`. Both work as root, and with sudo as an ordinary user.
# tools/bootstrap lists what they install.

SHELL := /bin/bash
PYTHON ?= /usr/bin/python3
export PYTHON

BIN := .venv/bin
UID := $(shell id -u)
OWNER := $(shell stat -c %u .)
# Commands that run as root leave no files that the checkout's owner cannot remove.
CLEANLY := env PYTHONDONTWRITEBYTECODE=1
AS_ROOT := $(if $(filter 0,$(UID)),,sudo) $(if $(filter 0,$(OWNER)),,$(CLEANLY))
HASH := \#
# One more worker than cores, because some tests wait.
AT_ONCE := -n $(shell echo $$(( $$(nproc) < 4 ? $$(nproc) + 1 : 4 )))
# Tests whose figures do not depend on the machine's load.
SIDE_BY_SIDE := $(AT_ONCE)
GUESTS := $(AT_ONCE) --dist loadfile --no-loadscope-reorder
# Two networks at a time, because their tests mostly wait. Tests that need the machine to themselves are marked `quiet`.
NETS := -n 2 --dist loadfile
# Installing an SSH server also starts it, so `make test` does not install one outside CI.
SSHD = $(shell PATH=$$PATH:/usr/sbin command -v sshd)
# `make test` reads passed and skipped tests from this report.
REPORT = $(if $(REPORTS),--junitxml=$(REPORTS)/$@.xml)
AS_OWNER := $(if $(filter 0,$(UID)),$(if $(filter-out 0,$(filter $(OWNER),$(SUDO_UID))),sudo -H -u '$(HASH)$(OWNER)' --))
GIVE_BACK := $(if $(filter 0,$(OWNER)),true,$(if $(filter 0,$(UID)),,sudo) chown -R $(shell stat -c %u:%g .) runs)

# On a busy machine the demo is retried 2 and 4 times as slowly.
DEMO := scenarios/quickstart.yaml --retry-dilated 4
BUSY := 'The host is too busy for real-time measurements now, even four times as slowly; the figures above say so.' \
	'End other programs and try again, or use the virtual clock, which load cannot disturb: make virtual (once, about five minutes), then' \
	'$(BIN)/testbed run scenarios/quickstart.yaml --clock virtual'

.PHONY: help demo test test-all setup environment virtual lint unit thorough net net-shared net-quiet test-virtual test-vagrant test-machines lock charts build site clean-env
.NOTPARALLEL:

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: setup ## install what is missing, run scenarios/quickstart.yaml
	@echo '==>' $(AS_ROOT) $(BIN)/testbed run $(DEMO); \
	$(AS_ROOT) $(BIN)/testbed run $(DEMO); status=$$?; \
	[ ! -d runs ] || $(GIVE_BACK); \
	if [ $$status = 3 ]; then status=0; echo $(BUSY); fi; exit $$status

test: setup ## install what is missing, run all checks and tests; report skipped tests
	@tools/bootstrap rdma ryu peers validate $(if $(CI)$(SSHD),machines) $(if $(CI),browser)
	@$(CLEANLY) $(BIN)/python -m tests.lanes

test-all: ## run all tests, including those marked thorough; takes hours
	@$(MAKE) --no-print-directory --keep-going test thorough

setup: ## install what is missing: system packages, Open vSwitch started, .venv
	@tools/bootstrap system switch environment

environment: ## .venv alone; needs no root
	@tools/bootstrap environment

virtual: environment ## the virtual clock's kernel, built once (about five minutes); as root it serves all users
	@tools/bootstrap system kernel rdma
	$(AS_ROOT) $(BIN)/testbed virtual build

lint: environment ## ruff, mypy, the import order of packages
	$(AS_OWNER) $(BIN)/ruff check .
	$(AS_OWNER) $(BIN)/ruff format --check .
	$(AS_OWNER) $(BIN)/mypy
	$(AS_OWNER) $(BIN)/lint-imports --no-logo --no-cache

unit: environment ## tests that need no root; of one package: make unit ROOM=comm
	$(AS_OWNER) $(BIN)/python -m pytest $(REPORT) $(SIDE_BY_SIDE) tests/unit$(if $(ROOM),/$(ROOM))

thorough: environment ## tests marked thorough; takes minutes
	@tools/bootstrap site
	$(AS_OWNER) $(BIN)/python -m pytest -q -m thorough $(SIDE_BY_SIDE) tests/unit
	$(AS_ROOT) $(BIN)/python -m pytest -q -p no:cacheprovider -m thorough tests/net
	$(AS_ROOT) $(BIN)/python -m pytest -q -p no:cacheprovider -m thorough tests/virtual

net: net-shared net-quiet ## tests on real namespaces and Open vSwitch, as root

net-shared: setup
	$(AS_ROOT) $(BIN)/python -m pytest $(REPORT) -p no:cacheprovider --durations=12 $(NETS) \
		-m 'net and not quiet and not thorough' tests/net

net-quiet: setup
	$(AS_ROOT) $(BIN)/python -m pytest $(REPORT) -p no:cacheprovider --durations=12 \
		-m 'quiet and not thorough' tests/net

ifeq ($(shell uname -m),x86_64)
test-virtual: virtual ## tests under the virtual clock, as an ordinary user where possible
	$(AS_ROOT) $(BIN)/python -m pytest $(REPORT) -p no:cacheprovider --durations=12 $(GUESTS) tests/virtual
else
test-virtual:
	@echo 'not tested: the virtual clock, whose kernel runs on x86-64 only'
endif

test-vagrant: environment ## tests in a Vagrant machine, on libvirt, as root; takes an hour without KVM
	@tools/bootstrap vagrant
	$(AS_ROOT) $(BIN)/python -m pytest -p no:cacheprovider -v -m vagrant tests/vagrant

test-machines: setup ## tests of a network over two machines, which are namespaces of this one, as root; takes minutes
	@tools/bootstrap machines
	$(AS_ROOT) $(BIN)/python -m pytest $(REPORT) -p no:cacheprovider -v -m machines tests/machines

lock: environment ## regenerate the lock file of the Python packages; UPGRADE=1 takes the newest versions
	@tools/lock $(if $(UPGRADE),--upgrade)

charts: ## rebuild the live page's charts from locked packages; needs npm
	cd tools/charts && npm ci --ignore-scripts --silent && npm run --silent build

build: environment ## build wheel and source archive in dist/
	$(AS_OWNER) $(BIN)/uv build --quiet --build-constraints requirements/build.lock --require-hashes

site: environment ## build the documentation in build/site and check its links
	@tools/bootstrap site
	$(AS_OWNER) $(BIN)/python tools/site_pages.py build/pages
	$(AS_OWNER) env NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict
	@echo 'the site: build/site/index.html, which opens from there'

clean-env: ## remove what setup made in this checkout
	rm -rf .venv .venv-ryu .venv-peers .venv-ns3 .venv-site
