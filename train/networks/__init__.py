"""The families of networks, each a function that writes its table. `train.networks.arch` is their door. Pure."""
