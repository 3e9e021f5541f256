"""Live trackers: TensorBoard, W&B and MLflow get a run's numbers while it runs, from ``metrics.jsonl``.

A process of its own follows the file, so that a tracker that hangs or fails neither slows a rank nor ends a run.
"""
