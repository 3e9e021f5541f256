"""Trained networks for other programs: files of every format, their description, and predictions from them."""
