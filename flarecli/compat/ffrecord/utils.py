"""The import path `ffrecord.utils`."""

from __future__ import annotations

from flarecli.compat.ffrecord.files import dump

__all__ = ["dump"]
