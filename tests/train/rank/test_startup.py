"""The ledger counts each phase, and what ran side by side, once."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.rank.startup import Ledger, process_age_s


def _ledger(spans: list[tuple[float, float]]) -> dict[str, object]:
    ledger = Ledger()
    ledger._rows.clear()
    for number, (begin, end) in enumerate(spans):
        ledger._add(str(number), ledger._origin + begin, ledger._origin + end)
    return ledger.to_json()


def test_phases_one_after_another_save_nothing() -> None:
    assert _ledger([(0, 1), (1, 3), (5, 6)])["overlap_saved_s"] == pytest.approx(0)


def test_a_phase_inside_another_is_saved_whole() -> None:
    row = _ledger([(0, 10), (2, 5), (4, 6)])
    assert row["overlap_saved_s"] == pytest.approx(5)
    assert row["elapsed_s"] == pytest.approx(10)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=12))
def test_saved_time_equals_work_minus_the_union(pairs: list[tuple[int, int]]) -> None:
    spans = [(float(begin), float(begin + length)) for begin, length in pairs]
    union = sum(any(begin <= tick < end for begin, end in spans) for tick in range(80))
    row = _ledger(spans)
    assert row["overlap_saved_s"] == pytest.approx(sum(end - begin for begin, end in spans) - union, abs=1e-4)


def test_a_phase_that_raises_is_still_entered() -> None:
    ledger = Ledger()
    with pytest.raises(KeyError), ledger.phase("doomed"):
        raise KeyError
    assert [row["phase"] for row in ledger.to_json()["phases"]] == ["interpreter", "doomed"]


def test_the_ledger_starts_when_the_kernel_started_the_process() -> None:
    assert 0 < process_age_s() < 3600


@pytest.mark.ranks
def test_mxnet_is_imported_without_what_it_only_takes_along_and_others_may_import_that_later() -> None:
    program = (
        "import sys; from train.rank.startup import import_mxnet; import_mxnet();"
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


@pytest.mark.ranks
def test_operators_made_at_their_first_call_are_those_that_a_plain_import_makes() -> None:
    programs = _OPERATORS, f"from train.rank.startup import import_mxnet; import_mxnet(){_OPERATORS}"
    running = [subprocess.Popen([sys.executable, "-c", each], stdout=subprocess.PIPE, text=True) for each in programs]
    plain, deferred = (each.communicate()[0] for each in running)
    assert [each.returncode for each in running] == [0, 0]
    assert deferred == plain


_PIPELINE = """
from nvidia.dali import fn, pipeline
made = pipeline.Pipeline(batch_size=2, num_threads=1, device_id=None, seed=3)
with made:
    made.set_outputs(fn.random.uniform(range=[0.0, 1.0], shape=[4]), fn.constant(idata=[1, 2]))
made.build()
print([output.as_array().tolist() for output in made.run()])
print(sorted(name for name in dir(fn) if not name.startswith("_")))
"""


@pytest.mark.ranks
def test_dali_without_its_manual_computes_the_same() -> None:
    imported = "from train.rank.startup import dali_without_manual\nwith dali_without_manual(): import nvidia.dali.fn"
    after = "assert not nvidia.dali.fn.resize.__doc__"
    programs = f"import nvidia.dali.fn{_PIPELINE}", f"{imported}\n{after}{_PIPELINE}"
    running = [subprocess.Popen([sys.executable, "-c", each], stdout=subprocess.PIPE, text=True) for each in programs]
    plain, quick = (each.communicate()[0] for each in running)
    assert [each.returncode for each in running] == [0, 0]
    assert quick == plain
