"""What MLCommons prescribes to whoever shows a result that it did not review, as no result of this program was.

*Source*: MLPerf Results Messaging Guidelines of 11 July 2025 (mlcommons/policies at c195f80, read 25 November 2026),
sections 2, 3.2 and 5: "you must indicate your results are not verified by using the term 'unverified' next to each
result score and by using the following language when publishing or otherwise discussing your results: 'Result not
verified by MLCommons Association.'" The footnote names suite, version, division and benchmark, as in their example:
"Unverified MLPerf(R) v0.5 Inference Closed ResNet-v1.5 offline. Result not verified by MLCommons Association. The
MLPerf name and logo are ...". Date and source of retrieval and a result's ID are those of published results.
"""

RETIRED = (
    "ResNet-50 left MLPerf® Training after v4.0: by the rules of 9 December 2025 it is deprecated, "
    "so nobody can submit a run of it for review."
)
"""*Source*: MLPerf Training Rules of 9 December 2025, appendix Deprecated benchmarks: image classification, v4.0."""

TERM = "unverified"
"""The word beside each score."""

_NOT_VERIFIED = "Result not verified by MLCommons Association."

_BESIDE_VERIFIED = (
    "Unverified results have not been through an MLPerf® review and may use measurement methodologies and/or workload "
    "implementations that are inconsistent with the MLPerf specification for verified results."
)

_TRADEMARK = (
    "The MLPerf name and logo are registered and unregistered trademarks of MLCommons Association in the United States "
    "and other countries. All rights reserved. Unauthorized use strictly prohibited. See www.mlcommons.org for more "
    "information."
)


def footnote(ruleset: str, division: str, *, is_score: bool, beside_verified: bool = False) -> str:
    """Return the footnote of a run that is meant for MLPerf.

    Args:
        ruleset: Edition of the rules by which the run was timed, for example 4.0.0.
        division: ``open`` or ``closed``.
        is_score: Whether the run trained on ImageNet, so that its time is a score of the benchmark.
        beside_verified: Whether results of others, which may be verified, are shown beside the run.
    """
    version = ".".join(ruleset.split(".")[:2])
    name = f"MLPerf® v{version} Training {division.capitalize()} ResNet-50 v1.5"
    what = f"Unverified {name}." if is_score else f"No score of {name}, which trains on ImageNet."
    comparison = [_BESIDE_VERIFIED] if is_score and beside_verified else []
    return " ".join([what, _NOT_VERIFIED, *comparison, _TRADEMARK])
