"""JSON, CSV, TSV and XSV shards of MosaicML Streaming."""
