"""The home of MXNet: network, optimizers, array verbs, export. Importing this package imports MXNet as ranks do."""

from train.engine.mxnet.mxnet_import import import_mxnet

import_mxnet()
