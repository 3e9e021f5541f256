"""Exchanging gradients: communicators, buckets, the ranks of one process."""
