"""OpenFHE behind a pipe: the library loads on few interpreters, so it may run in a worker process of its own.

=============== ====================================================================================================
`worker.py`     the only file that imports the library; numpy and the standard library besides; runs on CPython 3.10+
`bridge.py`     one call interface to it, in a worker process or in this one
`find.py`       which interpreter can load the library
`params.py`     rings, moduli, noise and headroom
`residues.py`   bit-packed polynomials on the wire and their sum, without the library
=============== ====================================================================================================

Nothing that came over a network reaches the library's parser: messages carry polynomial residues only, each checked to
be below its modulus, and the worker puts them into blobs whose surroundings it serialised itself.
"""
