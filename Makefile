# Every target sets up what it needs in .venv; nothing has to be installed beforehand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := demo-output
SITE := build/site
COVERED := algorithms tables server settings runs
ON_ALL_CORES := --numprocesses auto --dist worksteal

.PHONY: demo docs docs-serve notebook test test-all coverage lint format bench bench-peers reproduction clean

# Five algorithms, two seeds, 2 of 100 clients a round, one digit a client; a figure and a page.
demo: $(READY)
	$(BIN)/fedvarp sweep digits --algorithms fedavg,fedvarp,cluster_fedvarp,fedvarp_mixed,scaffold \
		--client-lrs 0.3 --seeds 0,1 --set data.shards_per_client=1 --set evaluation.every=10 \
		--set recording.commit_every=10 --out $(DEMO)/runs
	$(BIN)/fedvarp compare $(DEMO)/runs --target 0.9
	$(BIN)/fedvarp plot $(DEMO)/runs --smooth 5 --log-loss --out $(DEMO)/figure.png
	$(BIN)/fedvarp report $(DEMO)/runs --target 0.9 --out $(DEMO)/report.html
	@echo "Look at $(DEMO)/figure.png and, in a browser, at $(DEMO)/report.html"

# The site: built strict, every link followed, nothing loaded from elsewhere.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	$(BIN)/python -m website.checks $(SITE)
	@echo "Open $(SITE)/index.html, or with search: make docs-serve"

# docs/tutorial.ipynb, made of docs/tutorial.md and run.
notebook: $(READY)
	$(BIN)/python -m website.tutorial

docs-serve: $(READY)
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE) 8000

test: lint
	$(BIN)/python -m pytest -m "not slow" $(ON_ALL_CORES)

test-all: lint
	$(BIN)/python -m pytest $(ON_ALL_CORES)

# How much of the core the quick tests of its rooms run, line by line; the floor was measured.
coverage: $(READY)
	$(BIN)/python -m pytest -m "not slow" $(ON_ALL_CORES) --cov-fail-under=95 \
		$(foreach room,$(COVERED),--cov=fedvarp.$(room) tests/$(room)) tests/laws

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m benchmarks

# Flower, pfl-research and fedjax beside ours, each in an environment of its own under .bench.
bench-peers: $(READY)
	$(BIN)/python -m benchmarks.peers

# The figures and tables of the pages of results, from the metrics in reproduction/.
reproduction: $(READY)
	$(BIN)/python -m benchmarks.reproduction

# torch first and by its exact version: a looser request would bring gigabytes of CUDA packages.
$(READY): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) .bench $(DEMO) build dist .mypy_cache .ruff_cache .pytest_cache
