"""The report: two summaries from the same fields, the evidence, and the figure."""
