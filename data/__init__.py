"""Images from their source to a rank's batches: packing, verification, copying to local disks, shards and pipelines.

``python -m data prepare`` is the command behind ``./run.sh prepare``. Imports `configs`, but nothing else of ours.
"""
