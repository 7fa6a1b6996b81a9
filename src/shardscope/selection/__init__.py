"""Comparing strategies, judging constraints and choosing, from finished runs and their attributions."""
