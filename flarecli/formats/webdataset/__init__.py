"""WebDataset: tar files."""
