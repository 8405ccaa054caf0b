"""Drawings of the site, made from the library's own functions when it is built."""
