# Everything goes through .venv; PYTHON is what makes it.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Some hundred processes of ours are started by the tests: each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# Cells of lessons are tests, too: their outputs are those that are committed.
LESSONS := --nbval --nbval-sanitize-with tests/notebooks/sanitize.cfg --nbval-cell-timeout 120
# Five on two cores, as most of these wait at times: for the end of a timeout, a death, a start. In the order of
# conftest.py, and not by the number of tests in a file.
WAITING := -n 5 --dist loadfile --no-loadscope-reorder
# These compare times. They wait more than they compute, so unit tests run beside them, which give way.
TIMED := $(wildcard notebooks/0[456]-*.ipynb) tests/notebooks/test_papermill.py
# This one needs a Slurm: tests/hosts runs it.
QUEUED := notebooks/appendix-a-run-on-slurm.ipynb

# No torch and no processes of their own: unit tests alone reach every line that matters.
PURE := ppwork/protocol/*,ppwork/records/*,ppwork/timeline/*,ppwork/diagnosis/*,ppwork/pictures/*,ppwork/claims/themes/*,ppwork/*.py
# Coverage makes a test half as quick again: of these rooms' tests it is asked.
COVERED := $(addprefix tests/unit/,claims cli diagnosis pictures protocol records timeline worker test_errors.py)
GIVES_WAY := nice -n 10

# Stages that sleep: as if each rank had a device of its own, and not three of them two cores.
SLEEPING := --workload synthetic --stage0-ms 20,20 --stage1-ms 60 --payload-mb 1 --chunks 24

.PHONY: demo test check types imports spelling covered uncovered timed fix compat lab slides site screenshots pictures bench mutants hosts slurm-page gpu-kit gpu clean

demo: .venv/.run  ## set up, then the main job: the shipped clip, denoised by a mesh of two
	$(BIN)/ppwork run --verify

test: check  ## set up, then every check and test
	@echo "Unit tests, and the lessons that compare times, at once: two to three minutes. Each shows its output at its end."
	$(MAKE) --no-print-directory -j 3 --output-sync=target timed covered uncovered
	$(BIN)/python -m pytest $(LESSONS) $(WAITING) tests/multiproc tests/notebooks --ignore tests/notebooks/test_papermill.py \
		$(filter-out $(TIMED) $(QUEUED),$(wildcard notebooks/*.ipynb notebooks/solutions/*.ipynb))

timed: .venv/.dev
	$(BIN)/python -m pytest $(LESSONS) $(TIMED)

covered: .venv/.dev
	rm -f .coverage*
	$(GIVES_WAY) $(BIN)/coverage run -m pytest -n 2 --dist worksteal $(COVERED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include="$(PURE)" --skip-covered --fail-under=95

uncovered: .venv/.dev
	$(GIVES_WAY) $(BIN)/python -m pytest -n 2 --dist worksteal tests/unit tests/project $(COVERED:%=--ignore=%)

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory -j 2 --output-sync=target types imports spelling

types: .venv/.dev
	$(BIN)/mypy

imports: .venv/.dev
	$(BIN)/lint-imports

spelling: .venv/.dev
	$(BIN)/codespell

fix: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev  ## about half an hour on a quiet machine; tables and JSON in benchmarks/results
	$(BIN)/python benchmarks/transport.py
	$(BIN)/python benchmarks/overlap.py
	$(BIN)/python benchmarks/simulate.py

compat: .venv-torch-$(TORCH)/.dev  ## the short suite on another torch: make compat TORCH=2.11.0 (gigabytes)
	.venv-torch-$(TORCH)/bin/python -m pytest tests/unit tests/multiproc/worker/test_runs.py tests/multiproc/runtime/test_overlap.py \
		tests/multiproc/faults/test_failures.py tests/multiproc/worker/test_main_job.py

.venv-torch-$(TORCH)/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-torch-$(TORCH)
	grep -v -e "^torch==" -e "^setuptools==" constraints.txt > .venv-torch-$(TORCH)/constraints.txt
	.venv-torch-$(TORCH)/bin/python -m pip install --quiet -c .venv-torch-$(TORCH)/constraints.txt \
		"torch==$(TORCH)" -e ".[dev]"
	touch $@

mutants: .venv/.dev  ## take each guard out, one at a time, and see that a test fails
	$(BIN)/python tests/mutations.py

hosts: .venv/.dev  ## as root: hosts in miniature, cut, frozen, switched off, and a Slurm of two, which is installed: minutes
	-command -v slurmd slurmctld srun > /dev/null || apt-get install -y --no-install-recommends slurmctld slurmd slurm-client
	$(BIN)/python -m pytest tests/hosts tests/multiproc/hosts

slurm-page: .venv/.dev  ## as root: the page on Slurm anew, on that Slurm of two
	$(BIN)/python tests/support/slurm_page.py

lab: .venv/.dev  ## JupyterLab on the lessons, on loopback
	$(BIN)/jupyter lab --ip 127.0.0.1 notebooks

slides: .venv/.dev  ## decks and instructor's notes from the lessons as they stand; runs nothing
	$(BIN)/ppwork slides

site: .venv/.dev  ## lessons as they were executed, docs and API as one static site with search, in build/site
	$(BIN)/python docs/site/build.py

screenshots: .venv/.dev  ## lessons in JupyterLab in a browser, as pictures in screenshots/
	PPWORK_SCREENSHOTS=screenshots $(BIN)/python -m pytest tests/notebooks/test_in_jupyterlab.py

pictures: .venv/.run  ## the README's pictures anew, from runs on this machine while nothing else runs
	rm -rf build/pictures
	$(BIN)/ppwork run $(SLEEPING) --depth 1 --out build/pictures/depth-1
	$(BIN)/ppwork run $(SLEEPING) --depth 3 --out build/pictures/depth-3
	$(BIN)/ppwork timeline build/pictures/depth-1 --compare build/pictures/depth-3
	$(BIN)/ppwork trace docs/examples/calls.py --nproc 3 --out build/pictures/calls
	cp build/pictures/depth-1/timeline-compare.png docs/timeline.png
	cp build/pictures/calls/calls.png docs/calls.png
	-$(BIN)/ppwork trace docs/examples/hang.py --nproc 3 --limit 10 --out build/pictures/hang  # it hangs
	cp build/pictures/hang/calls.png docs/hang.png

gpu-kit: .venv/.run  ## wheels for a GPU machine without a network, into gpu-kit/ (docs/gpu.md)
	$(BIN)/python scripts/gpu/kit.py collect

gpu: $(if $(filter gloo,$(BACKEND)),.venv/.dev)  ## on a GPU machine: make gpu OUT=folder [STAGES=a,b]; without one BACKEND=gloo
	$(if $(filter gloo,$(BACKEND)),$(BIN)/python,$(PYTHON)) scripts/gpu/kit.py install runs/gpu/venv
	runs/gpu/venv/bin/python scripts/gpu/run.py --out $(or $(OUT),runs/gpu/out) $(if $(BACKEND),--backend $(BACKEND)) $(if $(STAGES),--stages $(STAGES))

clean:  ## what was made, but not your runs
	rm -rf .venv build gpu-kit .coverage*

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.run: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e ".[run]"
	touch $@

.venv/.dev: .venv/.run
	$(PIP) -e ".[dev]"
	touch $@
