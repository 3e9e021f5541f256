"""The blocks of keys that a recipe (`training`, `images`) and a cluster file (the other modules) consist of.

`configs.schema` and `configs.cluster` put the blocks together and check what must agree between blocks. Optimizers and
decays have folders of their own.
"""
