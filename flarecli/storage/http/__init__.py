"""Files on the web: one libcurl engine, its scheduler, and the checks of addresses and responses."""
