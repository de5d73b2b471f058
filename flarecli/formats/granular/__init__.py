"""Granular: one bag of records per column, in the layouts of three generations."""
