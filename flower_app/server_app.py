"""The ServerApp that Flower ships: a stub, the code comes from the installed package."""

from fedsim.server_app import app

__all__ = ["app"]
