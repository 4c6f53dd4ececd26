"""Real clients: certificates, node keys, health."""
