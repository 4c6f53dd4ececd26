"""Experiments on DictPFL and its baselines."""
