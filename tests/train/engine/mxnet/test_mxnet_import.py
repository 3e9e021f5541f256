"""The faster import of MXNet gives the same MXNet."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

from train.engine.mxnet import mxnet_import

needs_mxnet = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed: ./run.sh setup")


@needs_mxnet
@pytest.mark.ranks
def test_mxnet_is_imported_without_what_it_only_takes_along_and_others_may_import_that_later() -> None:
    program = (
        "import sys; from train.engine.mxnet.mxnet_import import import_mxnet; import_mxnet();"
        "print('mxnet' in sys.modules, 'sklearn' in sys.modules, 'scipy' in sys.modules);"
        "import scipy, sklearn, mxnet; print(mxnet.nd.ones(2).sum().asscalar())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False", "2.0"]


_OPERATORS = """
import mxnet as mx
x = mx.sym.Variable("x")
y = mx.sym.Concat(mx.sym.Convolution(x, kernel=(3, 3), num_filter=2, name="c"), x, dim=1, name="j")
print(y.tojson())
a = mx.nd.arange(6).reshape((2, 3))
print(mx.nd.Concat(a, a, dim=0).asnumpy(), mx.nd.sum(data=a, axis=1).asnumpy(), mx.np.ones((2, 3)).sum())
for module in (mx.nd, mx.sym, mx.nd._internal, mx.sym.contrib, mx.np, mx.npx):
    print(*(name for name in dir(module) if not name.startswith("gen_")))
"""


@needs_mxnet
@pytest.mark.ranks
def test_operators_made_at_their_first_call_are_those_that_a_plain_import_makes() -> None:
    programs = _OPERATORS, f"from train.engine.mxnet.mxnet_import import import_mxnet; import_mxnet(){_OPERATORS}"
    running = [subprocess.Popen([sys.executable, "-c", each], stdout=subprocess.PIPE, text=True) for each in programs]
    plain, deferred = (each.communicate()[0] for each in running)
    assert [each.returncode for each in running] == [0, 0]
    assert deferred == plain


def test_an_mxnet_that_makes_its_operators_in_another_way_is_left_alone() -> None:
    def register_otherwise(name: str) -> str:
        return name

    base = ModuleType("base")
    vars(base)["_init_op_module"] = register_otherwise
    mxnet_import._defer_operators(base)
    assert vars(base)["_init_op_module"] is register_otherwise
    assert not hasattr(base, "_init_np_op_module")
