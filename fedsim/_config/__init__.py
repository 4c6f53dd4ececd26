"""The settings' sections, their rules, and how they are read and written; :mod:`fedsim.config` is the shop window."""
