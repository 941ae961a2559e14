"""Tables of the paper, one experiment per file."""
