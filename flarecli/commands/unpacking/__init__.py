"""unpack: rows of a dataset become files."""
