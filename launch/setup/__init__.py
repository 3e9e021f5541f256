"""Make the virtual environment: checks, pinned wheels, Horovod compiled on this machine.

Set-up runs before anything is installed, so these modules import the standard library and `configs.errors` only.
"""
