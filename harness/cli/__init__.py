"""The `agentx` command line: a file per command, no logic."""
