"""HTTP client: the libcurl engine, its request scheduler, and checks of addresses and responses."""
