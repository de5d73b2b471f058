"""Transform functions for `transforms=`: `from flarecli.compat.sds.transforms import presets`."""
