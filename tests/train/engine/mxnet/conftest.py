"""The tests of this folder need MXNet."""

from configs.registry import has_engine

collect_ignore_glob = [] if has_engine("mxnet") else ["test_*.py"]
