"""A rank of ./run.sh doctor."""
