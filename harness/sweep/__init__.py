"""Sweeps: serving configurations × concurrencies × scenarios, one run per point, resumable."""
