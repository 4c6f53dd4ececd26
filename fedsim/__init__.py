"""Federated and private learning: launch simulated federations, deploy real clients, measure every byte and second."""
