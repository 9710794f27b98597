# Tools for people: dependencies, everything that must pass, a demonstration, a cluster in one terminal, figures.
N ?= 3
DEVICES ?= cpu:2
RUN ?= build/run
ONLY ?=
export PROMPT
# Where nobody said how many, as many compilers as there are processors.
PARALLEL := $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))
.PHONY: deps test demo check-demo check-interrupt check-newcomer check-tutorial run-dev bench compdb lint venv
deps: ## install the missing packages of mk/packages.txt; nothing else
	$(Q)sh mk/deps.sh
test: ## all checks and test tiers, gcc and clang; ends with "N passed, N failed"
	+$(Q)MAKE=$(MAKE) sh mk/test.sh
demo: ## install what is missing, build; a language model on a cluster of daemons, sharded, trained, a worker killed; PROMPT="..."
	+$(Q)sh mk/deps.sh && $(MAKE) --no-print-directory $(PARALLEL) all
	$(Q)sh mk/demo.sh $(BUILD)
check-demo: all ## the demonstration, shorter: to its end, with a wrong token, stopped in the middle
	$(Q)sh mk/demo.sh $(BUILD) check
MOMENTS ?= 12
check-interrupt: all ## Ctrl-C in the demonstration at MOMENTS=12 moments that SEED=1 chooses: nothing runs on, nothing is left; 20 minutes
	$(Q)sh mk/demo.sh $(BUILD) check $(MOMENTS) $(SEED)
check-newcomer: $(PROGRAMS) ## a wrong Python, no room, no network, a port in use, an old build, no root: each told in one line
	$(Q)sh tests/newcomer.sh $(BUILD)
check-tutorial: all ## the programs and commands of the documents, on a cluster of daemons: what they print is what is told
	$(Q)sh mk/check-tutorial.sh $(BUILD)
run-dev: all ## a controller and N=3 workers with DEVICES=cpu:2 each in this terminal; Ctrl-C ends all
	$(Q)[ ! -e $(BUILD)/lib/libdtorch_torch.so ] || build/venv/bin/python client/python/build_dtorch.py tree build/python $(BUILD)
	$(Q)RUN=$(RUN) exec bash mk/run-dev.sh $(BUILD) $(N) "$(DEVICES)"
bench: ## the figures, one JSON line each, also in build/bench.jsonl; ONLY=key,key
	+$(Q)$(MAKE) --no-print-directory PRESET=release all bench-programs
	$(Q)sh mk/bench.sh build/release "$(ONLY)"
bench-programs: $(BENCH_BIN)
lint: check-tidy ## the same as check-tidy
compdb: ## compile_commands.json for clangd
	+$(Q)$(MAKE) --no-print-directory -nB V=1 all tests 2>/dev/null | sh mk/compdb.sh >compile_commands.json
	@echo "compile_commands.json: $$(grep -c '"file"' compile_commands.json) files"
