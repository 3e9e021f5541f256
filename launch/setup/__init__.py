"""Build the virtual environment: checks, pinned wheels, Horovod compiled here. Standard library only: it runs first."""
