"""verify: check that a dataset is complete and undamaged."""
