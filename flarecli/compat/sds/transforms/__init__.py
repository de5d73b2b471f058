"""Functions of a sample for `transforms=`: `from flarecli.compat.sds.transforms import presets`."""
