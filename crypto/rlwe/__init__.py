"""Additive RLWE encryption of our own: exact sums near the size of the values themselves. Not audited.

:mod:`crypto.rlwe.parameters` chooses parameters from a plan and derives the bounds; :mod:`crypto.rlwe.scheme` has the
roles; :mod:`crypto.rlwe.threshold` opens by a committee; :mod:`crypto.rlwe.reference` is the mathematics in numpy.
"""
