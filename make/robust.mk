# The compiled module under sanitizers, with its stored vectors and damaged input.
.PHONY: sanitize
sanitize: $(VENV)/.installed-dev
	PYTHON=$(BIN)/python scripts/sanitize.sh $(ARGS)

# Damaged input for every decoder, then the slow tests of leaks, kills and drills; ends after SOAK_S seconds each.
SOAK_S ?= 900
.PHONY: soak
soak: $(VENV)/.installed-test
	$(BIN)/python tests/fuzz/drive.py --executions 1000000 --seconds $(SOAK_S) --seed $$(date +%s)
	$(BIN)/python -m pytest -n0 -m slow --session-timeout=$(SOAK_S) tests/soak tests/fedsim/test_kill.py tests/fedsim/test_drills.py $(ARGS)
