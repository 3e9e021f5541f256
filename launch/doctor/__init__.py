"""./run.sh doctor: ranks that look at their node, and what is made of it."""
