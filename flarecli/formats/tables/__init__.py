"""Tables: readers of Parquet, Arrow IPC, CSV and JSON files. Memory use is bounded."""
