"""The loss of a recipe: what is minimised, and label smoothing. `train.ideas.loss` has the formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from configs.errors import ConfigError
from configs.ideas.idea import Idea
from configs.registry import SOURCES_WITH_LABEL_VECTORS
from configs.rule import REFERENCE, exactly
from configs.section import Section

if TYPE_CHECKING:
    from configs.schema import Recipe


class Loss(Section):
    """What training minimises.

    ``softmax`` is cross-entropy with smoothed labels, for one class an image, judged by top-1. ``sigmoid`` is binary
    cross-entropy, the mean over classes, for any number of labels an image, judged by ROC-AUC. ``one_hot_sigmoid`` is
    binary cross-entropy, the sum over classes, against the smoothed label of one class an image, judged by top-1
    (Composer's ``binary_cross_entropy_with_logits``; Wightman et al., arXiv:2110.00476). Evaluations then still report
    the softmax's cross-entropy.

    With smoothing a over K classes, ``uniform`` is the sense of TensorFlow and MLPerf: 1-a+a/K on the label and a/K
    elsewhere (Szegedy et al., arXiv:1512.00567). ``softmax_output`` is the sense of MXNet's SoftmaxOutput: 1-a on the
    label, a/(K-1) elsewhere.

    With a weight w of each class, the loss of an image is the sum over classes of -w t log p, where t is the smoothed
    label, of two labels if the image is mixed: what ``CrossEntropyLoss(weight=w, reduction='sum')`` adds of each image
    in PyTorch. A step divides the sum by the images of the global batch, whatever their weights; PyTorch's ``mean``
    divides by the sum of the weights of the batch's labels. Where the weights of all training images have the mean 1,
    as ``balanced`` ones have, both are about the same, and the learning rate needs no change.
    """

    kind: Literal["softmax", "sigmoid", "one_hot_sigmoid"] = "softmax"
    """softmax for one class per image, sigmoid for any number of labels per image, one_hot_sigmoid for one class per
    image that a sigmoid of each class tells from the rest."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing: share of a label that is spread over the classes. Larger values penalise confident wrong answers
    less; 0 trains on the plain label. sigmoid does not allow it."""
    smoothing: Literal["uniform", "softmax_output"] = "uniform"
    """Where the smoothed share goes: to all classes (uniform) or to all but the label (softmax_output)."""
    mixed_label_threshold: float | None = Field(None, ge=0, lt=1)
    """Share above which a label of a mixed image counts in full; one at or below it does not count (timm's
    bce_target_thresh). If null, each label counts by its share. Only with one_hot_sigmoid and without smoothing."""
    class_weights: Annotated[tuple[float, ...], Field(strict=False)] | Literal["balanced"] | None = None
    """Weight of each class in the loss, for classes with few images: a list of numbers, in the order of the classes, or
    balanced, which weighs a class of n of N training images by N / (n x number of classes), as scikit-learn does.
    Evaluations weigh nothing. If null, all classes weigh 1."""

    @field_validator("class_weights", mode="before")
    @classmethod
    def _are_weights(cls, given: object) -> object:
        is_list = isinstance(given, list | tuple) and all(
            type(each) in (int, float) and 0 < each < math.inf for each in given
        )
        if not is_list and given not in (None, "balanced"):
            raise ConfigError("class_weights", given, "balanced, null, or a list of a number above 0 for each class")
        return given

    def _require_agreement(self) -> None:
        self.refuse(self.has_label_vectors and self.label_smoothing, "label_smoothing", "0 where loss.kind is sigmoid")
        are_weighed = self.class_weights is not None
        self.refuse(are_weighed and self.kind != "softmax", "class_weights", f"null where loss.kind is {self.kind}")
        has_threshold, is_plain = self.mixed_label_threshold is not None, not self.label_smoothing
        allowed = "null, or loss.kind one_hot_sigmoid with loss.label_smoothing 0"
        is_wrong = has_threshold and not (self.kind == "one_hot_sigmoid" and is_plain)
        self.refuse(is_wrong, "mixed_label_threshold", allowed)

    def balanced(self, counts: Sequence[int], num_classes: int) -> Loss:
        """Return the loss with the numbers of balanced weights, whose mean over all training images is 1.

        Args:
            counts: Training images of each class; a class without any has the weight 0. Those behind have none.
            num_classes: Width of the classifier.
        """
        if self.class_weights != "balanced":
            return self
        share = sum(counts) / sum(count > 0 for count in counts)
        weights = [share / count if count else 0.0 for count in counts] + [0.0] * (num_classes - len(counts))
        return self.model_copy(update={"class_weights": tuple(weights)})

    @property
    def has_label_vectors(self) -> bool:
        """Whether a label is a 0 or a 1 for each class, instead of one class."""
        return self.kind == "sigmoid"

    @property
    def activation(self) -> str:
        """The function that makes probabilities of the logits: ``softmax`` or ``sigmoid``."""
        return "softmax" if self.kind == "softmax" else "sigmoid"

    def smoothed(self, num_classes: int) -> tuple[float, float]:
        """Return the weights of an image's label and of every other class.

        With a = label_smoothing and K classes: ``uniform`` weighs the label 1-a+a/K and every other class a/K;
        ``softmax_output`` weighs them 1-a and a/(K-1).
        """
        smoothing = self.label_smoothing
        if self.smoothing == "uniform":
            other = smoothing / num_classes
            return 1 - smoothing + other, other
        return 1 - smoothing, smoothing / (num_classes - 1)

    def constant_loss(self, shares: Sequence[float], num_classes: int) -> float:
        """Return the least loss of a prediction that is the same for all images, in nats.

        Without weights it is the entropy of the smoothed labels' mean. Of sigmoids, it is the sum over the classes: of
        the class, and of the rest.

        Args:
            shares: Share of each class among the training images. Classes behind them have none.
            num_classes: Width of the classifier.
        """
        label, other = self.smoothed(num_classes)
        absent = [0.0] * (num_classes - len(shares))
        mean = [share * label + (1 - share) * other for share in (*shares, *absent)]
        if self.activation == "sigmoid":
            return _entropy([*mean, *(1 - share for share in mean)])
        if isinstance(weights := self.class_weights, tuple):
            mean = [share * weight for share, weight in zip(mean, weights, strict=True)]
        total = math.fsum(mean)
        return _entropy(mean) + total * math.log(total)


def _entropy(shares: Sequence[float]) -> float:
    return -math.fsum(share * math.log(share) for share in shares if share > 0)


class LossIdea(Idea):
    """The loss, which every recipe has; its keys are those of its block."""

    block = "loss"
    keys = Section
    rules = (
        exactly("loss", "loss.kind", "softmax", REFERENCE),
        exactly("class_weights", "loss.class_weights", None, REFERENCE),
    )

    def require_fit(self, recipe: Recipe) -> None:
        """Refuse labels and weights of other classes than the loss takes, and a target where there is no top-1."""
        weights, source, classes = recipe.loss.class_weights, recipe.data.source, recipe.model.num_classes
        vectors, target = recipe.loss.has_label_vectors, recipe.run.target_top1
        allowed = f"{classes} numbers, one for each class (model.num_classes), or balanced"
        recipe.refuse(isinstance(weights, tuple) and len(weights) != classes, "loss.class_weights", allowed)
        allowed = f"sigmoid for data.source: {source}, whose images have several labels"
        recipe.refuse(not vectors and source in SOURCES_WITH_LABEL_VECTORS, "loss.kind", allowed)
        allowed = f"{', '.join(sorted(SOURCES_WITH_LABEL_VECTORS))} or synthetic where loss.kind is sigmoid"
        is_wrong = vectors and source not in (*SOURCES_WITH_LABEL_VECTORS, "synthetic")
        recipe.refuse(is_wrong, "data.source", allowed)
        allowed = "null where loss.kind is sigmoid, which has no top-1"
        recipe.refuse(vectors and target is not None, "run.target_top1", allowed)

    def label_shape(self, recipe: Recipe) -> tuple[int, ...] | None:
        """Return that of a 0 or a 1 for each class, if labels are those."""
        return (recipe.model.num_classes,) if recipe.loss.has_label_vectors else None

    def logged(self, recipe: Recipe) -> Mapping[str, Any]:
        """Return the smoothing."""
        return {"label_smoothing": recipe.loss.label_smoothing}

    def described(self, recipe: Recipe) -> Mapping[str, Any]:
        """Return the function that makes probabilities of the exported network's logits."""
        return {"activation": recipe.loss.activation}
