"""Two-server block-sparse secure aggregation with distributed point functions (arXiv 2503.11897)."""
