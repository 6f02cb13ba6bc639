"""The engine model: prefix cache and batch timing, free of I/O."""
