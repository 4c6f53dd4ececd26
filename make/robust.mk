# The compiled module under sanitizers, with its stored vectors and damaged input.
.PHONY: sanitize
sanitize: $(VENV)/.installed-dev
	PYTHON=$(BIN)/python scripts/sanitize.sh $(ARGS)

# Damaged input for every decoder, then the slow tests of leaks, kills, signals and drills, in an order of the day: as
# many of each as fit into SOAK_S seconds.
SOAK_S ?= 900
.PHONY: soak
soak: $(VENV)/.installed-test
	$(BIN)/python tests/fuzz/drive.py --executions 1000000 --seconds $(SOAK_S) --seed $$(date +%s)
	FEDSIM_SOAK_S=$(SOAK_S) FEDSIM_SOAK_SEED=$$(date +%j) $(BIN)/python -m pytest -n0 -m slow -p tests.soak.timebox \
		tests/soak tests/fedsim/test_kill.py tests/fedsim/test_kill_matrix.py tests/fedsim/test_signals.py \
		tests/fedsim/test_drills.py $(ARGS)
