"""What ideas compute that needs more than array operations (`configs.ideas` has the ideas), and optimizers."""
