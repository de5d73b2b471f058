"""Granular: one bag of records per column, in the layouts of all versions of the library."""
