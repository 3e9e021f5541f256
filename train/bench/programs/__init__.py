"""What the ranks of a bench run: each a program that tells its samples as lines of JSON on standard output."""
