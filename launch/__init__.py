"""Set-up, and starting runs: the environment, the ranks of one machine, job scripts. Never imports train or data."""
