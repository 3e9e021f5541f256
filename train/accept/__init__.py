"""What the ranks of ``./run.sh accept`` do beyond the doctor's: train alone for bits, and swap arrays two by two."""
