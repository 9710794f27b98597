# Tools for people: dependencies, everything that must pass, a demonstration, a cluster in one terminal, figures.
N ?= 3
ONLY ?=
export PROMPT
# Where nobody said how many, as many compilers as there are processors.
PARALLEL := $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))
.PHONY: deps test demo check-demo run-dev bench compdb lint venv
deps: ## install the missing packages of mk/packages.txt; nothing else
	$(Q)sh mk/deps.sh
test: ## all checks and test tiers, gcc and clang; ends with "N passed, N failed"
	+$(Q)MAKE=$(MAKE) sh mk/test.sh
demo: ## install what is missing, build; a language model on a cluster of daemons, sharded, trained, a worker killed; PROMPT="..."
	+$(Q)sh mk/deps.sh && $(MAKE) --no-print-directory $(PARALLEL) all
	$(Q)sh mk/demo.sh $(BUILD)
check-demo: all ## the demonstration, shorter: to its end, with a wrong token, stopped in the middle
	$(Q)sh mk/demo.sh $(BUILD) check
run-dev: all ## a controller and N=3 workers in this terminal; Ctrl-C ends all
	$(Q)bash mk/run-dev.sh $(abspath $(BUILD)/bin) $(N)
bench: ## the figures, one JSON line each, also in build/bench.jsonl; ONLY=key,key
	+$(Q)$(MAKE) --no-print-directory PRESET=release all bench-programs
	$(Q)sh mk/bench.sh build/release "$(ONLY)"
bench-programs: $(BENCH_BIN)
lint: check-tidy ## the same as check-tidy
compdb: ## compile_commands.json for clangd
	+$(Q)$(MAKE) --no-print-directory -nB V=1 all tests 2>/dev/null | sh mk/compdb.sh >compile_commands.json
	@echo "compile_commands.json: $$(grep -c '"file"' compile_commands.json) files"
