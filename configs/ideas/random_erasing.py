"""Random erasing: a rectangle of some training images becomes zeros. The part is `train.ideas.random_erasing`."""

from pydantic import Field

from configs.ideas.idea import Idea
from configs.rule import AUGMENTATION, exactly
from configs.section import Section


class RandomErasingKeys(Section):
    """The key of random erasing."""

    random_erasing: float = Field(0.0, ge=0, le=1)
    """Probability with which a normalised training image loses a rectangle, which becomes zeros (Zhong et al.,
    arXiv:1708.04896; random_erase of torchvision, reprob of timm): 0.02 to 0.33 of the image's area, with a ratio of
    height to width of 0.3 to 3.3. 0 erases nothing."""


class RandomErasing(Idea):
    """Random erasing. The part makes a copy of the images."""

    block = "data"
    keys = RandomErasingKeys
    rules = (exactly("random_erasing", "data.random_erasing", 0, AUGMENTATION),)
    part = "train.ideas.random_erasing"
    held_batches = 1
