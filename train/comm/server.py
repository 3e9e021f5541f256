"""The process of a parameter server, or of the servers' scheduler.

Importing MXNet runs the role that DMLC_ROLE names, until all ranks have left.
"""

from train.rank.watchdog import die_with_parent


def main() -> None:
    """Serve until all ranks have left; does not return."""
    die_with_parent()
    import mxnet  # noqa: F401, PLC0415 (ends the process when the last rank is gone)


if __name__ == "__main__":
    main()
