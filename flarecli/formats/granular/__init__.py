"""Granular: bags, in three generations."""
