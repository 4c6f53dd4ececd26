"""Experiments around LEFF: the paper's models by size, and fine-tuning a real transformer under unequal capacity."""
