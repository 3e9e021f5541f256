"""Images on their way to the network: packing and verifying RecordIO, shards, pipelines.

``python -m data prepare`` is the command behind ``./run.sh prepare``.
"""
