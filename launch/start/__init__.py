"""Starting ranks: command lines of launchers, the ranks of one machine, what watches them."""
