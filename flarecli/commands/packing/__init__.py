"""pack: rows of a source become shards."""
