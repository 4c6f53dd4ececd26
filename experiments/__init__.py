"""Questions and answers: sweeps, configurations of experiments, benchmarks. Knows fedsim."""
