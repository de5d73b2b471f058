"""HTML pages: one about a dataset, one about the findings of a check."""
