"""flare: pack, unpack, inspect, verify, list and stream sharded datasets, without trusting a byte of them."""

from __future__ import annotations

__version__ = "0.1.0"
