"""Running many clients on one machine or a Ray cluster."""
