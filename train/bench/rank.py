"""One rank of whatever a bench starts: ``python -m train.bench.rank NAME TASK``.

NAME is a module of `train.bench.programs`, and TASK has the arguments of its function ``main`` as JSON. Imports the
standard library only: a bench measures imports, and the environment of a peer has none of our packages.
"""

import json
import sys
from importlib import import_module

if __name__ == "__main__":
    name, task = sys.argv[1:]
    import_module(f"train.bench.programs.{name}").main(**json.loads(task))
