"""The ways to hide points from a fit. Needs only the standard library, because the command line lists them."""

LARGEST_SMALL_SYSTEM = 16
"""Accelerators of the largest systems that the kind ``larger`` leaves in the fit."""
NUM_PARTS = 8
"""Number of parts that the kinds ``row`` and ``campaign`` make, of which one is hidden at a time."""
KINDS = {
    "nested": "all of a submitter, of a chip's round and of the chip's larger systems, to predict those above "
    f"{LARGEST_SMALL_SYSTEM}",
    "row": "an eighth of the rows at a time, while similar rows stay in the fit",
    "campaign": "an eighth of the submissions at a time, each with all rows of a submitter in a round",
    "largest": "the largest systems of a product, one product at a time",
    "larger": f"all systems above {LARGEST_SMALL_SYSTEM} accelerators at once",
    "family": "all rows of a chip, one chip at a time",
}
"""Way to hide points -> what is hidden, from easy to hard."""
BASES = {
    "seen": ("tuned", ("campaign",)),
    "larger": ("tuned", ("nested", "largest", "larger")),
    "unseen": ("tuned", ("family",)),
    "compiler": ("compiler", ("family",)),
}
"""Key of `train.sim.constants.Calibration.half_widths` -> programs and kinds whose errors set this half-width."""
