"""One rank of whatever a bench starts: ``python -m train.bench.rank NAME TASK``.

NAME is a module of `train.bench.programs`, or one with a function, as ``gpu.kernels``; without it, that is ``main``.
TASK has the arguments as JSON; or ``cases``, title -> the other arguments, which are measured one after another, so
that imports and the tuning of cuDNN are paid once.

Imports the standard library only, because a bench measures imports.
"""

import gc
import json
import sys
from importlib import import_module
from typing import Any

if __name__ == "__main__":
    (module, _, name), task = sys.argv[1].partition("."), json.loads(sys.argv[2])
    main = getattr(import_module(f"train.bench.programs.{module}"), name or "main")
    if "cases" not in task:
        main(**task)
    for title, case in task.get("cases", {}).items():
        main(title=title, **case)
        gc.collect()  # A network, its steps and its graphs refer to each other.
        torch: Any = sys.modules.get("torch")
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
        if torch and torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
