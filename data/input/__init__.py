"""Batches for one rank: from packed images through DALI, or from synthetic images in memory."""
