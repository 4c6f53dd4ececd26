# An interpreter that loads OpenFHE, for the worker process of crypto/he_openfhe.py.
.PHONY: openfhe
openfhe:
	scripts/openfhe.sh
