"""Import path `streaming.base.format.xsv`."""

from flarecli.compat.streaming.writers import CSVWriter, TSVWriter, XSVWriter

__all__ = [
    "CSVWriter",
    "TSVWriter",
    "XSVWriter",
]
