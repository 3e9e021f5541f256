"""The programs that the ranks of a bench run. Each one writes samples as lines of JSON (`train.bench.samples`)."""
