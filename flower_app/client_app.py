"""The ClientApp that Flower ships: a stub, the code comes from the installed package."""

from fedsim.client_app import app

__all__ = ["app"]
