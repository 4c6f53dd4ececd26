"""Helpers of the command line; :mod:`fedsim.cli` has the commands."""
