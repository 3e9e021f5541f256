"""What ideas and optimizers compute, on the arrays of any engine; `configs.ideas` has what they say of themselves."""
