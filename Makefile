# make help, demo, test, test-full, frameworks, test-torch, dist, smoke, release, planted, fuzz, machine-code, casts, packs, bench, lint, api, licences,
# docs: each first makes the environment it needs, in $(VENV), and installs nothing again until setup.cfg changes.
#
#   make test PYTHON=python3.13         another interpreter: give it another VENV too
#   make test BIN=/opt/env/bin          an environment that exists already: nothing is made or installed
#   make smoke PYTHONS="python3.12 python3.13"    these interpreters, in environments of their own, $(VENV)-3.12 and so on
#   make machine-code AGAINST=main      what kernels compile to, recorded, and compared with that commit
#   make demo ARGS=--plot=loss.png      arguments of the program, for demo, planted, fuzz, machine-code, bench and test (pytest's)

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
SHELL := /bin/bash

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

ifdef BIN
with = $(BIN)/python
else
BIN := $(VENV)/bin
# Toolkit wheels of the major version that the driver can run: cu13, cu12, or none without a GPU.
CUDA := $(shell $(PYTHON) .ci/cuda_extra.py)
with = $(VENV)/with-$(1)
endif

# Without PYTHONS those of setup.cfg that the tests' Python leaves.
TESTED = $(or $(wildcard $(BIN)/python),$(PYTHON))
PYTHONS ?= $(shell $(TESTED) .ci/pythons.py)

.PHONY: help demo test test-full frameworks test-torch dist smoke release planted fuzz machine-code casts packs bench lint api licences docs clean

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

demo: $(call with,demo$(CUDA:%=-%))
	mkdir -p build
	$(BIN)/python -m dnnkern demo --picture build/demo.png $(ARGS)

test: $(call with,test$(if $(filter cu12,$(CUDA)),-cu12))
	.ci/tiers $(BIN)/python $(ARGS)

test-full: $(call with,test$(if $(filter cu12,$(CUDA)),-cu12))
	.ci/tiers $(BIN)/python --everything $(ARGS)

# PyTorch, Keras, JAX, transformers and ONNX, without which `make test` skips their tests by name.
frameworks: $(call with,test$(if $(filter cu12,$(CUDA)),-cu12)) $(call with,torch$(if $(CUDA),,-cpu)) $(call with,keras) $(call with,jax) $(call with,transformers) $(call with,onnx-onnxscript)

test-torch: frameworks
	DNNKERN_DEVICE=cpu $(BIN)/python -m pytest -q -n auto --dist worksteal tests/test_cpu_torch_*.py $(ARGS)
	NUMBA_ENABLE_CUDASIM=1 $(BIN)/python -m pytest -q tests/test_torch_step.py $(ARGS)
	$(if $(CUDA),DNNKERN_DEVICE=cuda $(BIN)/python -m pytest -q -m gpu tests/test_torch_*.py $(ARGS))

# A wheel and an sdist in dist/. The wheel is made from the sdist, and the same bytes for the same commit.
dist: $(call with,dist)
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist > /dev/null
	$(BIN)/python .ci/distribution.py dist

smoke: dist
	VENV=$(VENV) .ci/smoke $(PYTHONS)

# What docs/releasing.md says of a release's files: kernel packs, licences and checksums beside wheel and sdist. The packs serve the wheel in an
# environment of its own, without compilers. ARGS="--set demo" makes small packs in minutes, to try it out.
release: dist packs
	cp build/dnnkern-*.pack dist
	$(BIN)/python .ci/licences.py > dist/licences.md
	$(BIN)/python -m venv --clear $(VENV)-release
	$(VENV)-release/bin/python -m pip install --quiet dist/*.whl
	$(VENV)-release/bin/python .ci/served.py dist/*.pack
	cd dist && sha256sum * > SHA256SUMS

planted: $(call with,test$(if $(filter cu12,$(CUDA)),-cu12))
	$(BIN)/python tests/planted.py $(ARGS)

fuzz: $(call with,test$(if $(filter cu12,$(CUDA)),-cu12))
	NUMBA_ENABLE_CUDASIM=1 PYTHONPATH=$(CURDIR) $(BIN)/python tests/fuzz.py --processes $(shell nproc) $(ARGS)

packs: $(call with,test$(if $(filter cu12,$(CUDA)),-cu12))
	for arch in sm_80 sm_90a sm_100a; do $(BIN)/python -m dnnkern pack --arch $$arch --out build/dnnkern-$$arch.pack $(ARGS) || exit; done

machine-code: $(call with,test$(if $(filter cu12,$(CUDA)),-cu12))
	$(BIN)/python tests/machine_code.py tree $(AGAINST:%=--against=%) $(ARGS)

casts: $(call with,test$(if $(filter cu12,$(CUDA)),-cu12))
	mkdir -p build
	$(BIN)/python tests/casts.py observe build/casts.json $(ARGS)
	$(BIN)/python tests/casts.py list build/casts.json

bench: $(call with,bench$(CUDA:%=-%))
	$(BIN)/python -m dnnkern bench $(ARGS)

lint: $(call with,lint)
	$(BIN)/python -m flake8
	$(BIN)/python .ci/words.py
	$(BIN)/python -m mypy

# Which public names or keywords have gone since tests/public_api.txt; ARGS=--record writes it, ARGS=--stub the stub that type checkers read.
api: frameworks
	KERAS_BACKEND=torch $(BIN)/python tests/public_api.py $(ARGS)

licences: $(call with,dist)
	$(BIN)/python .ci/licences.py $(ARGS)

docs: $(call with,docs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir build/docs $(ARGS)
	$(BIN)/python .ci/docs/site_check.py build/docs

clean:
	rm -rf $(VENV) $(VENV)-* build dist *.egg-info .pytest_cache

# The environment begins anew when what it should hold changes; each extra is then added where it is first needed.
$(VENV)/made: setup.cfg pyproject.toml
	@[ ! -e $(VENV) ] || [ -e $@ ] || { echo "$(VENV) exists, and was not made here. Expected another: make VENV=folder, or BIN=its/bin; make clean removes it"; exit 1; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	touch $@

# A name such as demo-cu13 stands for the extras demo and cu13; test-cu12 and torch-cpu are extras themselves.
extras = $(if $(filter test-cu12 torch-cpu,$(1)),$(1),$(subst -,$(comma),$(1)))
comma := ,

$(VENV)/with-%: $(VENV)/made
	$(VENV)/bin/python -m pip install --quiet --editable '.[$(call extras,$*)]'
	touch $@
