"""Make the virtual environment: checks, pinned wheels, Horovod compiled on this machine.

Set-up runs before anything is installed, so these modules import the standard library, `configs.errors` and
`configs.arguments` only. The Dockerfile copies no other files of the program before set-up.
"""
