# The compiled module under sanitizers, with its stored vectors and damaged input.
.PHONY: sanitize
sanitize: $(VENV)/.installed-dev
	PYTHON=$(BIN)/python scripts/sanitize.sh $(ARGS)
