"""The run: command line, lifecycle, worker processes, the simulated endpoint."""
