"""A parameter server's or scheduler's process: imported, MXNet becomes what DMLC_ROLE says, until all ranks leave."""

from __future__ import annotations

from train.rank.watchdog import die_with_parent

__all__ = ["main"]


def main() -> None:
    """Serve; does not come back."""
    die_with_parent()
    import mxnet  # noqa: F401, PLC0415 (ends the process when the last rank is gone)


if __name__ == "__main__":
    main()
