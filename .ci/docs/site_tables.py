"""Tables of the site that are made of the rows of bench/results when it is built."""
