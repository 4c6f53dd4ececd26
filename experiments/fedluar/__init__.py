"""FedLUAR's ablations: a toy that runs in seconds, and sweeps on real data."""
