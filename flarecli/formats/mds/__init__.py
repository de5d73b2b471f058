"""MDS: shards of MosaicML Streaming."""
