"""Modules of the `unpack` command, which writes the rows of a dataset as files."""
