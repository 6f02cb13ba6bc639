"""Accelerators and the engine model."""
