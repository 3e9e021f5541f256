"""The home of MXNet: network, optimizers, parameters, trace."""
