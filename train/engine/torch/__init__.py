"""The home of PyTorch: network, optimizers, array verbs, export. Importing this package does not import PyTorch."""
