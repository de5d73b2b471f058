"""FFRecord."""
