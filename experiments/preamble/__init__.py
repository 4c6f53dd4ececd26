"""PREAMBLE's experiments."""
