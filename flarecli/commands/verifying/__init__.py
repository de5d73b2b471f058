"""Modules of the `verify` command, which checks that a dataset is complete and undamaged."""
