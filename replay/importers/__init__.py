"""Bring foreign trace formats into a corpus: a file per format."""
