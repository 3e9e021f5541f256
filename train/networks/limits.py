"""Limits of the GPU libraries on the shapes of operators, with sources. Pure: imports no framework.

A test holds the operators of every shipped recipe, at the shapes that each GPU cluster gives them, against these
limits, in training and in inference.
"""

INFERENCE_ROWS = 65_535
"""Most images of a batch norm in inference. *Source*: libcudnn_ops_infer.so of cuDNN 8.9.6 returns
CUDNN_STATUS_NOT_SUPPORTED for more; PyTorch has the same guard. Inference here has no batch norm, see
`train.engine.mxnet.folding`."""

TRAINING_ROWS = 880_801
"""Most images of a batch norm in training. *Source*: the guard in PyTorch's ``aten/native/Normalization.cpp``; whether
cuDNN 8.9.6 still has this limit was not tried. Larger batch norms are computed in NCHW, see
`train.engine.mxnet.symbols`."""

TENSOR_ELEMENTS = 2**31 - 1
"""Most elements of a tensor. *Source*: MXNet 1.9.1's wheels are built without INT64_TENSOR_SIZE, and refuse more."""


def batch_norm_rows(images: int, side: int, layout: str) -> int:
    """Return the images that MXNet hands to cuDNN for a batch norm over ``images`` squares of ``side`` px.

    With the channels last, stock MXNet 1.9.1 makes an image of every pixel (``cudnn_batch_norm-inl.h``).
    """
    return images * side**2 if layout == "NHWC" else images
