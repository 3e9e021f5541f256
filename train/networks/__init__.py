"""The families of networks, each a function that writes its table. `train.arch` is their door. Pure."""
