"""Start the ranks of a run: command lines of launchers, the ranks of one machine, samples of the machine's load."""
