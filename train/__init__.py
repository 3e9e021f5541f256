"""Training: pure cores (arch, schedule, buckets) and the adapters that own MXNet, PyTorch and Horovod."""
