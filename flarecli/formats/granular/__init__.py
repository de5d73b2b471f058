"""Granular: one bag of records per column, in three generations."""
