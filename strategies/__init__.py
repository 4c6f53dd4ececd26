"""The papers: each strategy has its server half and its client half side by side. Knows crypto, flwr and torch."""
