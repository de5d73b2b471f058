"""The number of examples of property tests: a quarter, or all if PROPERTY_EXAMPLES=all is set
(`make properties`).
"""

import os

SHARE = 1 if os.environ.get("PROPERTY_EXAMPLES") == "all" else 1 / 4
MIN_EXAMPLES = 10


def examples(count):
    """Return how many of `count` examples to draw."""
    return max(min(count, MIN_EXAMPLES), round(count * SHARE))
