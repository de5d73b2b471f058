"""WebDataset: samples in tar files."""
