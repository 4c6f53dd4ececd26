"""Sweeps: many runs from one file, in parallel, resumable, with one table and one report at the end."""
