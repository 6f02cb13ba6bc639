"""Schema, journal, Parquet store, statistics and summary of a run."""
