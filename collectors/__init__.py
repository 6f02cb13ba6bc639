"""What the server, the machine and the client itself say during a run."""
