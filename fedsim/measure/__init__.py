"""The ledger of bytes and seconds, and what is drawn from it."""
