# The two commands for users are `make demo` and `make test`. Everything works as root, and through sudo as anyone else;
# see tools/bootstrap for what is installed, and how.

SHELL := /bin/bash
PYTHON ?= /usr/bin/python3
export PYTHON

BIN := .venv/bin
UID := $(shell id -u)
OWNER := $(shell stat -c %u .)
# Root's commands leave nothing in the checkout that its owner could not remove.
CLEANLY := env PYTHONDONTWRITEBYTECODE=1
AS_ROOT := $(if $(filter 0,$(UID)),,sudo) $(if $(filter 0,$(OWNER)),,$(CLEANLY))
HASH := \#
# One more than there are cores: some tests wait for a moment, and a guest stays on one core, not the idlest for long.
AT_ONCE := -n $(shell echo $$(( $$(nproc) < 4 ? $$(nproc) + 1 : 4 )))
# Not by the real clock: under the virtual one figures do not depend on what else runs.
SIDE_BY_SIDE := $(AT_ONCE)
GUESTS := $(AT_ONCE) --dist loadfile --no-loadscope-reorder
# Two networks at once mostly wait for each other's clocks; what must not have another beside it is marked `quiet`.
NETS := -n 2 --dist loadfile
# An SSH server that is installed is started: `make test` installs none on somebody's own machine.
SSHD = $(shell PATH=$$PATH:/usr/sbin command -v sshd)
# Where `make test` reads what passed and what was skipped.
REPORT = $(if $(REPORTS),--junitxml=$(REPORTS)/$@.xml)
AS_OWNER := $(if $(filter 0,$(UID)),$(if $(filter-out 0,$(filter $(OWNER),$(SUDO_UID))),sudo -H -u '$(HASH)$(OWNER)' --))
GIVE_BACK := $(if $(filter 0,$(OWNER)),true,$(if $(filter 0,$(UID)),,sudo) chown -R $(shell stat -c %u:%g .) runs)

# A machine that has other things to do gets more time: twice, four times as slow.
DEMO := scenarios/quickstart.yaml --retry-dilated 4
BUSY := 'This machine is too busy to measure by its own clock now, even four times as slowly. Its figures above are' \
	'marked so. End what is busy and try again; or, however busy it is: make virtual (once, about five minutes), then' \
	'$(BIN)/testbed run scenarios/quickstart.yaml --clock virtual'

.PHONY: help demo test test-all setup environment virtual lint unit thorough net net-shared net-quiet test-virtual test-vagrant test-machines lock charts build site clean-env
.NOTPARALLEL:

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: setup ## install what is missing, run scenarios/quickstart.yaml
	@echo '==>' $(AS_ROOT) $(BIN)/testbed run $(DEMO); \
	$(AS_ROOT) $(BIN)/testbed run $(DEMO); status=$$?; \
	[ ! -d runs ] || $(GIVE_BACK); \
	if [ $$status = 3 ]; then status=0; echo $(BUSY); fi; exit $$status

test: setup ## install what is missing, run all checks and tests; says at its end what was skipped, and why
	@tools/bootstrap rdma ryu peers validate $(if $(CI)$(SSHD),machines) $(if $(CI),browser)
	@$(CLEANLY) $(BIN)/python -m tests.lanes

test-all: ## the same, and all of what it tries a part of; for a night
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

thorough: environment ## what other lanes try a part of, all of it: by turns, in guests, with Ryu; minutes
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
test-virtual: virtual ## tests under the virtual clock, as an ordinary user where that can be
	$(AS_ROOT) $(BIN)/python -m pytest $(REPORT) -p no:cacheprovider --durations=12 $(GUESTS) tests/virtual
else
test-virtual:
	@echo 'not tested: the virtual clock, whose kernel runs on x86-64 only'
endif

test-vagrant: environment ## tests in a machine of Vagrant's, on libvirt, as root; an hour where QEMU must emulate
	@tools/bootstrap vagrant
	$(AS_ROOT) $(BIN)/python -m pytest -p no:cacheprovider -v -m vagrant tests/vagrant

test-machines: setup ## tests of a network over two machines, which are namespaces of this one, as root; minutes
	@tools/bootstrap machines
	$(AS_ROOT) $(BIN)/python -m pytest $(REPORT) -p no:cacheprovider -v -m machines tests/machines

lock: environment ## lock the Python packages anew; UPGRADE=1 takes the newest of all
	@tools/lock $(if $(UPGRADE),--upgrade)

charts: ## what the live page draws with, anew from its locked packages; needs npm
	cd tools/charts && npm ci --ignore-scripts --silent && npm run --silent build

build: environment ## the wheel and the source archive, in dist/
	$(AS_OWNER) $(BIN)/uv build --quiet --build-constraints requirements/build.lock --require-hashes

site: environment ## the documentation's site, in build/site; links are checked
	@tools/bootstrap site
	$(AS_OWNER) $(BIN)/python tools/site_pages.py build/pages
	$(AS_OWNER) env NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict
	@echo 'the site: build/site/index.html, which opens from there'

clean-env: ## remove what setup made in this checkout
	rm -rf .venv .venv-ryu .venv-peers .venv-ns3 .venv-site
