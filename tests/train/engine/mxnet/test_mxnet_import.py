"""The faster import of MXNet gives the same MXNet."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import python

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


_DEFERRED = """
import sys
from train.engine.mxnet.mxnet_import import import_mxnet
import_mxnet()
assert not {"scipy", "sklearn"} & sys.modules.keys()
"""
_LATER = """
import scipy, sklearn
assert mx.nd.ones(2).sum().asscalar() == 2
"""


@pytest.mark.ranks
def test_operators_are_those_of_a_plain_import_and_what_is_left_out_may_be_imported_later() -> None:
    programs = _OPERATORS, f"{_DEFERRED}{_OPERATORS}{_LATER}"
    running = [subprocess.Popen([sys.executable, "-c", each], stdout=subprocess.PIPE, text=True) for each in programs]
    plain, deferred = (each.communicate()[0] for each in running)
    assert [each.returncode for each in running] == [0, 0]
    assert deferred == plain


@pytest.mark.ranks
def test_an_mxnet_that_needs_what_is_left_out_is_imported_as_it_is_and_nothing_stays_hidden(tmp_path: Path) -> None:
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text("import scipy; print('whole')", encoding="utf-8")
    program = (
        "import gc, sys; from train.engine.mxnet.mxnet_import import import_mxnet; import_mxnet(); import_mxnet();"
        "print(None in sys.modules.values(), gc.isenabled())"
    )
    variables = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = python("-c", program, env=variables, check=True)
    assert done.stdout.split() == ["whole", "False", "True"]
