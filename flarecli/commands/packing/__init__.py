"""Modules of the `pack` command, which writes the rows of a source as shards."""
