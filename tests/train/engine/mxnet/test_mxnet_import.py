"""The faster import of MXNet gives the same MXNet."""

import gc
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

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


_SITES_OWN = """
import sys
import mxnet.part
sys.tried.append(sorted(name for name, module in sys.modules.items() if module is None and name.startswith("tool_")))
import tool_of_mxnet
"""


@pytest.mark.parametrize("needs_tool", [False, True])
def test_an_mxnet_that_needs_what_is_left_out_is_imported_as_it_is_and_nothing_stays_hidden(
    needs_tool: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mxnet").mkdir()
    text = _SITES_OWN if needs_tool else _SITES_OWN.replace("import tool_of_mxnet", "import downloads_of_mxnet")
    (tmp_path / "mxnet" / "__init__.py").write_text(text, encoding="utf-8")
    (tmp_path / "mxnet" / "part.py").write_text("import sys; sys.tried.append('part')", encoding="utf-8")
    (tmp_path / "tool_of_mxnet.py").write_text("", encoding="utf-8")
    before, finders, tried = dict(sys.modules), list(sys.meta_path), list[str | list[str]]()
    monkeypatch.setattr(sys, "tried", tried, raising=False)
    monkeypatch.setattr(mxnet_import, "_HIDDEN", ("tool_of_mxnet",))
    monkeypatch.setattr(mxnet_import, "_DOWNLOADS", "downloads_of_mxnet")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "mxnet"]:
        monkeypatch.delitem(sys.modules, name)
    try:
        mxnet_import.import_mxnet()
        assert tried == ["part", ["tool_of_mxnet"], "part", []][: 4 if needs_tool else 2]
        left = {name for name in sys.modules if name not in before} - {"mxnet"}
        assert left == ({"mxnet.part", "tool_of_mxnet"} if needs_tool else {"mxnet.part"}) - before.keys()
        assert (sys.meta_path, gc.isenabled()) == (finders, True)
        mxnet_import.import_mxnet()
        assert tried.count("part") == 1 + needs_tool, "imported once"
    finally:
        for name in [name for name in sys.modules if name not in before]:
            del sys.modules[name]
