"""The same training in other simulators, each in a virtual environment of its own."""
