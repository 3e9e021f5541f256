"""What an acceptance writes: text, JSON, JUnit's XML."""

from xml.etree import ElementTree

from configs.load import ROOT
from launch.accept.document import Acceptance, Check, Figures
from launch.accept.judgement import nodes_of
from launch.doctor.check_result import Expected, in_words
from launch.doctor.facts import RankFacts
from logs.energy import RunEnergy
from logs.show.page import render_template

CHECKS = (
    Check("rate", "", "pass", "100 images/s", 100.0, "images/s", (Expected("the simulator", 90, 120, decides=False),)),
    Check("copy", "a<b", "slow", "too\x1b[1mslow, GPU-7", 0.2, "s", (Expected("the other nodes", high=0.1),)),
    Check("bits", "c", "failed", "other bits"),
    Check("learning", "", "skipped", "not tried"),
)


def _acceptance(*checks: Check) -> Acceptance:
    nodes = nodes_of(checks, [RankFacts(rank, 0, 3, host, ()) for rank, host in enumerate(("a<b", "c", "d"))])
    return Acceptance("2026-11-28T22:00:00+00:00", "site", "digits", None, False, nodes, checks, Figures(), RunEnergy())


def test_the_verdict_is_that_of_the_worst_check_and_what_was_skipped_is_none() -> None:
    found = [_acceptance(*CHECKS[:count]).verdict for count in (0, 1, 2, 3, 4)]
    assert found == ["pass", "pass", "slow", "failed", "failed"]
    assert _acceptance(CHECKS[3]).verdict == "pass"


def test_the_text_has_the_nodes_that_are_not_sound_and_counts_the_others() -> None:
    text = str(_acceptance(*CHECKS))
    assert all(words in text for words in ("GPU-7", "other bits", "1 node of 3 as expected", "site: failed"))
    assert "nothing of the kind was ever measured" in text, "the simulator's interval is marked"


def test_junit_has_a_case_for_each_check_and_a_failure_for_each_that_is_slow_or_failed() -> None:
    text = render_template(ROOT / "launch" / "accept" / "junit.xml", acceptance=_acceptance(*CHECKS))
    (suite,) = ElementTree.fromstring(text)
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "4", "failures": "2", "errors": "0", "skipped": "1"}
    found = {(case.get("classname"), case.get("name")): [each.tag for each in case] for case in suite}
    assert found == {
        ("site", "rate"): ["system-out"], ("site.a<b", "copy"): ["failure"], ("site.c", "bits"): ["failure"],
        ("site", "learning"): ["skipped"],
    }  # fmt: skip
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "slow"
    assert "GPU-7" in (failure.get("message") or "")


def test_json_has_all_keys_that_the_module_promises() -> None:
    document = _acceptance(*CHECKS).to_json([{"rank": 0}])
    assert set(document) == {
        "format", "time", "cluster", "recipe", "commit", "rehearsal", "verdict", "words", "nodes", "checks", "energy",
        "figures", "ranks",
    }  # fmt: skip
    assert (document["verdict"], document["ranks"], document["checks"][1]["host"]) == ("failed", [{"rank": 0}], "a<b")


def test_an_expectation_names_its_source_and_its_ends() -> None:
    assert in_words(Expected("the baseline", low=0.5), "GB/s") == "the baseline: at least 0.5 GB/s"
    assert in_words(Expected("the simulator", 1, 2), "s") == "the simulator: 1 to 2 s"
    assert "not known" in in_words(Expected("the simulator", note="not known"), "s")
